"""Packed folders in a real S3 server: opened, listed, mounted, unpacked and trained from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mounting import Mounts
from weed import Weed, cloud, weed  # noqa: F401

import fffs
from fffs.errors import AccessError, FffsError, SourceNotFoundError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for k in range(60):
        path = tmp_path / "src" / f"class{k % 3}" / f"{k} ü.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([k]) * (k * 131))
    return tmp_path / "src"


@pytest.fixture
def url(source: Path, cloud: Weed, tmp_path: Path) -> str:  # noqa: F811
    fffs.pack_folder(source, tmp_path / "p.ffr")
    cloud.put(cloud.bucket, "data/a b+c%2F/ü.ffr", (tmp_path / "p.ffr").read_bytes())
    return f"s3://{cloud.bucket}/data/a b+c%2F/ü.ffr"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fffs", *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_commands(url: str, source: Path, tmp_path: Path) -> None:
    assert "class1" in _run("ls", url).stdout
    assert _run("cat", url, "class1/1 ü.bin").stdout == chr(1) * 131
    assert "ok: 61 records" in _run("verify", url).stdout
    assert _run("unpack", url, str(tmp_path / "out")).returncode == 0
    subprocess.run(["diff", "-r", str(source), str(tmp_path / "out")], check=True)


def test_no_secret_leaves(url: str, cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-right-secret-000")
    done = _run("info", url)
    assert done.returncode == AccessError.exit_code
    said = done.stdout + done.stderr
    assert said.count("\n") == 1
    assert "not-the-right" not in said
    assert "X-Amz" not in said


@pytest.mark.parametrize("key", ["data/none.ffr", "data/a b+c/ü.ffr"])
def test_a_missing_object(url: str, cloud: Weed, key: str) -> None:  # noqa: F811
    with pytest.raises(SourceNotFoundError, match="no such object"):
        fffs.FileReader(f"s3://{cloud.bucket}/{key}")
    with pytest.raises(FffsError):
        fffs.FileReader(f"s3://no-such-bucket/{key}")


def test_a_folder_of_parts(cloud: Weed, tmp_path: Path) -> None:  # noqa: F811
    for k in range(40):
        with fffs.FileWriter(tmp_path / "p.ffr", 3) as writer:
            for j in range(3):
                writer.write_one(bytes([k, j]))
        cloud.put(cloud.bucket, f"parts/x-{k:05}.ffr", (tmp_path / "p.ffr").read_bytes())
    cloud.put(cloud.bucket, "parts/deeper/y.ffr", b"not one of them")
    with fffs.FileReader(f"s3://{cloud.bucket}/parts/") as reader:
        assert reader.n == 120
        assert [bytes(r) for r in reader.read([0, 4, 119, 60])] == [b"\0\0", b"\1\1", b"\x27\2", b"\x14\0"]
    with pytest.raises(SourceNotFoundError):
        fffs.FileReader(f"s3://{cloud.bucket}/nothing/")


def test_training_with_workers(url: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    import fffs.torch

    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "cache"))
    for context in ("fork", "spawn"):
        data = fffs.torch.PackedFolder(url)
        loader = fffs.torch.DataLoader(
            data, batch_size=7, shuffle=True, num_workers=2, collate_fn=list, multiprocessing_context=context
        )
        for _ in range(2):
            seen = sorted((bytes(image), label) for batch in loader for image, label in batch)
            wanted = sorted((p.read_bytes(), int(p.parent.name[-1])) for p in source.rglob("*.bin"))
            assert seen == wanted
    assert torch


@pytest.mark.fuse
def test_a_mount(url: str, source: Path, mounts: Mounts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFFS_CACHE", str(tmp_path / "cache"))
    point = mounts(url)  # type: ignore[arg-type]
    subprocess.run(["diff", "-r", str(source), str(point)], check=True)
    daemon = mounts.daemon.pid
    shown = Path(f"/proc/{daemon}/cmdline").read_bytes() + Path("/proc/mounts").read_bytes()
    assert b"X-Amz" not in shown
    assert os.environ["AWS_SECRET_ACCESS_KEY"].encode() not in shown
