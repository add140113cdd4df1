"""The objects in a folder of a store become a pack without a copy on a disk."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from inside import list_entries, object_client, object_folder, parse_url
from weed import Weed, cloud, weed

import fffs
from fffs.errors import SourceChangedError, SourceNotFoundError, UsageError

__all__ = ["cloud", "weed"]  # fixtures
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    object_client._owner.end()


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fffs", *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture(scope="module")
def objects(weed: Weed) -> dict[str, bytes]:
    """Objects below ``p/``: small, empty and large ones."""
    noise = np.random.default_rng(11).bytes(40 * MIB)
    files = {f"class{k % 3}/{k:03} ü+%2F.bin": noise[k : k + k * 211] for k in range(260)}
    files |= {
        "large": noise[: 35 * MIB + 7],
        "medium": noise[: 2 * MIB],
        "mib": noise[:MIB],
        "empty": b"",
        "a/b/c/d": b"deep",
    }
    for path, data in files.items():
        weed.put(weed.bucket, f"p/{path}", data)
    return files


@pytest.mark.parametrize("options", [(), ("--align",)], ids=["plain", "aligned"])
def test_a_folder_of_a_store_is_packed(
    cloud: Weed, objects: dict[str, bytes], tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = run("pack", f"s3://{cloud.bucket}/p/", tmp_path / "p.ffr", *options)
    assert (done.returncode, done.stderr) == (0, "")
    with fffs.PackedFolder(tmp_path / "p.ffr") as folder:
        assert {path: bytes(folder.read(path)) for path in objects} == objects
    run("unpack", tmp_path / "p.ffr", tmp_path / "out")
    times = {
        entry.key.removeprefix("p/"): entry.mtime_ns for entry in list_entries(parse_url(f"s3://{cloud.bucket}/p/"))
    }
    for path in objects:
        status = (tmp_path / "out" / path).stat()
        assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o644, times[path])
    # The same folder on a disk gives the same records.
    fffs.pack_folder(tmp_path / "out", tmp_path / "local.ffr", align=bool(options))
    with fffs.FileReader(tmp_path / "p.ffr") as far, fffs.FileReader(tmp_path / "local.ffr") as near:
        assert far.n == near.n
        assert all(bytes(far.read_one(k)) == bytes(near.read_one(k)) for k in range(far.n - 1))


def test_from_a_store_into_it(cloud: Weed, objects: dict[str, bytes], tmp_path: Path) -> None:
    for _ in range(2):  # the second time, the pack itself is in the folder, and is left out
        assert run("pack", f"s3://{cloud.bucket}/p/", f"s3://{cloud.bucket}/p/all.ffr").returncode == 0
    with fffs.PackedFolder(f"s3://{cloud.bucket}/p/all.ffr") as folder:
        assert {path: bytes(folder.read(path)) for path in objects} == objects
        assert not folder.exists("all.ffr")
    done = run("unpack", f"s3://{cloud.bucket}/p/all.ffr", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    assert {path: (tmp_path / "out" / path).read_bytes() for path in objects} == objects
    cloud.delete(cloud.bucket, "p/all.ffr")


def test_conversion_compares_with_the_objects(cloud: Weed, objects: dict[str, bytes], tmp_path: Path) -> None:
    done = run("convert", f"s3://{cloud.bucket}/p/", tmp_path / "c.ffr", "--verify")
    assert (done.returncode, done.stderr) == (0, "")
    with fffs.PackedFolder(tmp_path / "c.ffr") as folder:
        assert {path: bytes(folder.read_one(path)) for path in objects} == objects


@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_an_object_that_changes_meanwhile_is_named(
    cloud: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    for k in range(5):
        cloud.put(cloud.bucket, f"q/{k}", b"then")
    scan = object_folder.ObjectFolder.scan

    def scan_then_change(self: object_folder.ObjectFolder) -> object:
        contents = scan(self)
        if change == "removed":
            cloud.delete(cloud.bucket, "q/3")
        else:
            cloud.put(cloud.bucket, "q/3", b"now!")
        return contents

    monkeypatch.setattr(object_folder.ObjectFolder, "scan", scan_then_change)
    word = "vanished" if change == "removed" else "changed"
    with pytest.raises(SourceChangedError, match=f"s3://{cloud.bucket}/q/3: {word} while it was packed"):
        fffs.pack_folder(f"s3://{cloud.bucket}/q/", tmp_path / "q.ffr")
    assert list(tmp_path.glob("*.ffr")) == []


def test_what_cannot_be_a_folder_of_files(cloud: Weed, tmp_path: Path) -> None:
    with pytest.raises(SourceNotFoundError, match="no objects"):
        fffs.pack_folder(f"s3://{cloud.bucket}/nothing/", tmp_path / "n.ffr")
    with pytest.raises(UsageError, match="write s3://test/p/"):
        fffs.pack_folder(f"s3://{cloud.bucket}/p", tmp_path / "n.ffr")
    with pytest.raises(UsageError, match="cannot be listed"):
        fffs.pack_folder("https://127.0.0.1:1/p/", tmp_path / "n.ffr")
    assert threading.active_count() < 30


def test_an_object_with_the_name_of_a_folder(cloud: Weed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = [object_client.ListedObject(key, 1, '"e"', 0) for key in ("r/a", "r/a-b", "r/a/b")]
    monkeypatch.setattr(object_folder, "list_entries", lambda folder: iter(both))
    with pytest.raises(UsageError, match="s3://test/r/a: an object and a folder have this name"):
        fffs.pack_folder(f"s3://{cloud.bucket}/r/", tmp_path / "n.ffr")
