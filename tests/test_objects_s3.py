"""Packed folders in a real S3 server: opened, listed, mounted, unpacked and trained from."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from fsspec import AbstractFileSystem
from fsspec.registry import _registry
from mounting import Mounts
from weed import Weed, cloud, weed  # noqa: F401

import fffs
from fffs.errors import AccessError, FffsError, SourceChangedError, SourceNotFoundError


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


def test_unpacking_with_options(url: str, cloud: Weed, source: Path, tmp_path: Path) -> None:  # noqa: F811
    for k, options in enumerate([("--jobs", "3"), ("--special-bits",), ("--keep-going", "-q")]):
        done = _run("unpack", *options, "--", url, str(tmp_path / f"out{k}"))
        assert (done.returncode, done.stderr) == (0, "")
        subprocess.run(["diff", "-r", str(source), str(tmp_path / f"out{k}")], check=True)
    damaged = bytearray((tmp_path / "p.ffr").read_bytes())
    damaged[5000] ^= 1
    cloud.put(cloud.bucket, "data/damaged.ffr", bytes(damaged))
    name = f"s3://{cloud.bucket}/data/damaged.ffr"
    assert _run("unpack", name, str(tmp_path / "none")).returncode == 5
    assert not (tmp_path / "none").exists()
    done = _run("unpack", "--keep-going", name, str(tmp_path / "most"))
    assert done.returncode == 5
    assert "checksum mismatch" in done.stderr
    assert len(list((tmp_path / "most").rglob("*.bin"))) == 59


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


# ---------------------------------------------------------------- through fsspec


def test_the_file_system_of_fsspec_reads_stores_without_s3fs(url: str, cloud: Weed) -> None:  # noqa: F811
    fs = fsspec.filesystem("ffr", fo=url)
    assert fs.cat(["class1/1 ü.bin", "class2/2 ü.bin"]) == {
        "class1/1 ü.bin": bytes([1]) * 131,
        "class2/2 ü.bin": bytes([2]) * 262,
    }
    with fs.open("class1/58 ü.bin") as file:
        assert file.read(10) == bytes([58]) * 10
        assert file.seek(-5, 2) == 58 * 131 - 5 and file.read() == bytes([58]) * 5
    assert pickle.loads(pickle.dumps(fs)).ls("", detail=False) == ["class0", "class1", "class2"]
    assert cloud.secret.encode() not in pickle.dumps(fs)


class _Refusing(AbstractFileSystem):
    """Stands for s3fs, which is only used if it gets options."""

    protocol = "s3"

    def __init__(self, **options: object) -> None:
        raise RuntimeError(f"s3fs was called with {sorted(options)}")


def test_a_chain_uses_s3fs_only_for_its_options(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_registry, "s3", _Refusing)
    with fsspec.open(f"ffr://class1/1 ü.bin::{url}") as file:
        assert file.read() == bytes([1]) * 131
    with pytest.raises(FffsError, match=r"s3fs was called with \['anon'\]"):
        fsspec.open(f"ffr://class1/1 ü.bin::{url}", s3={"anon": True})


def test_a_replaced_object_is_seen_by_new_file_systems(url: str, source: Path, cloud: Weed) -> None:  # noqa: F811
    old = fsspec.filesystem("ffr", fo=url)
    (source / "new").write_bytes(b"new")
    fffs.pack_folder(source, source.parent / "n.ffr")
    cloud.put(cloud.bucket, "data/a b+c%2F/ü.ffr", (source.parent / "n.ffr").read_bytes())
    assert fsspec.filesystem("ffr", fo=url).cat_file("new") == b"new"
    with pytest.raises(SourceChangedError):
        old.cat_file("class1/58 ü.bin")


def test_folders_in_chains(source: Path, cloud: Weed, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    for k in range(2):
        fffs.pack_folder(source / f"class{k}", source.parent / f"{k}.ffr")
        cloud.put(cloud.bucket, f"union/{k}.ffr", (source.parent / f"{k}.ffr").read_bytes())
    monkeypatch.setitem(_registry, "s3", _Refusing)  # a chain loses the slash at the end
    with fsspec.open(f"ffr://1 ü.bin::s3://{cloud.bucket}/union/") as file:
        assert file.read() == bytes([1]) * 131
    with pytest.raises(SourceNotFoundError, match=r"none\.ffr: there is no such object"):
        fsspec.open(f"ffr://1 ü.bin::s3://{cloud.bucket}/none.ffr")
