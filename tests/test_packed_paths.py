"""PackedFolder as users of pathlib and os expect it: stat, size, walk, open; readers as sequences."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from builders import record_file
from inside import record_sequence

import fffs
from fffs.errors import ChecksumError, EntryNotFoundError, RecordIndexError, UsageError


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paths") / "photos"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "a" / "1.jpg").write_bytes(b"1" * 1000)
    (folder / "a" / "b" / "2.jpg").write_bytes(bytes(range(256)) * 40)
    (folder / "z").write_bytes(b"")
    (folder / "ü\n").write_bytes(b"odd")
    os.link(folder / "a" / "1.jpg", folder / "again")
    (folder / "to-file").symlink_to("a/1.jpg")
    (folder / "to-folder").symlink_to("a")
    (folder / "nowhere").symlink_to("missing")
    os.chmod(folder / "z", 0o600)
    os.utime(folder / "z", ns=(0, 1_234_567_890_123_456_789))
    os.utime(folder / "a" / "1.jpg", ns=(0, -1_500_000_000))
    return folder


@pytest.fixture(scope="module")
def pack(source: Path) -> fffs.PackedFolder:
    fffs.pack_folder(source, source.parent / "photos.ffr")
    return fffs.PackedFolder(source.parent / "photos.ffr")


def test_stat_is_that_of_the_source(pack: fffs.PackedFolder, source: Path) -> None:
    paths = ["", ".", "a", "a/b", "z", "ü\n", "a/1.jpg", "again", "to-file", "to-folder", "nowhere", b"a/b/2.jpg"]
    for path in paths:
        full = os.path.join(os.fsencode(source), os.fsencode(path))
        for follow in (True, False):
            if path == "nowhere" and follow:
                with pytest.raises(EntryNotFoundError, match="nowhere"):
                    pack.stat(path)
                continue
            wanted, found = os.stat(full, follow_symlinks=follow), pack.stat(path, follow_symlinks=follow)
            assert (found.st_mode, found.st_mtime_ns, found.st_nlink) == (
                wanted.st_mode,
                wanted.st_mtime_ns,
                wanted.st_nlink,
            ), path
            assert found.st_mtime == pytest.approx(wanted.st_mtime)
            if not os.path.isdir(full) or not follow:
                assert found.st_size == wanted.st_size or os.path.isdir(full)
    assert pack.stat("a/1.jpg").st_ino == pack.stat("again").st_ino != pack.stat("z").st_ino
    assert [pack.size(path) for path in ("z", "a/1.jpg", "to-file")] == [0, 1000, 1000]
    assert pack.readlink("to-folder") == "a"


@pytest.mark.parametrize("method", ["stat", "size", "open", "readlink", "walk"])
def test_paths_that_are_not_there(pack: fffs.PackedFolder, method: str) -> None:
    act: Any = getattr(pack, method)
    for path in ("none", "/a", "../photos", "a/1.jpg/x", "\ud800"):
        with pytest.raises(EntryNotFoundError):
            list(act(path)) if method == "walk" else act(path)
    for path in {"size": ["a"], "open": ["a"], "readlink": ["a", "z"], "walk": ["z"]}.get(method, []):
        with pytest.raises(UsageError, match=path):
            list(act(path)) if method == "walk" else act(path)


def test_walk_is_that_of_os(pack: fffs.PackedFolder, source: Path) -> None:
    for top in ("", "a", "to-folder", "empty"):
        wanted = {}
        for path, folders, files in os.walk(source / top):
            files = [name for name in files if os.path.exists(os.path.join(path, name))]
            wanted[os.path.relpath(path, source) if path != str(source) else ""] = (sorted(folders), sorted(files))
        found = {path: (sorted(folders), sorted(files)) for path, folders, files in pack.walk(top)}
        assert found == wanted
    assert [path for path, *_ in pack.walk()] == [path for path, *_ in pack.walk(".")] == ["", "a", "a/b", "empty"]
    seen = []
    for path, folders, _ in pack.walk():
        seen.append(path)
        if "a" in folders:
            folders.remove("a")
    assert seen == ["", "empty"]


def test_open_gives_a_file_object(pack: fffs.PackedFolder, source: Path) -> None:
    data = (source / "a" / "b" / "2.jpg").read_bytes()
    with pack.open("a/b/2.jpg") as file:
        assert isinstance(file, io.BufferedReader)
        assert file.read(10) == data[:10]
        assert file.seek(-5, os.SEEK_END) == len(data) - 5
        assert file.read() == data[-5:]
    archive = source.parent / "inner.zip"
    with zipfile.ZipFile(archive, "w") as inner:
        inner.writestr("x", "content")
    (source.parent / "more").mkdir()
    archive.rename(source.parent / "more" / "inner.zip")
    fffs.pack_folder(source.parent / "more", source.parent / "more.ffr")
    with (
        fffs.PackedFolder(source.parent / "more.ffr") as more,
        more.open("inner.zip") as opened,
        zipfile.ZipFile(opened) as read,
    ):
        assert read.read("x") == b"content"


def test_damage_in_an_open_file(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "d.ffr"
    fffs.pack_folder(source, path)
    data = bytearray(path.read_bytes())
    data[data.index(b"1" * 1000) + 500] ^= 1
    path.write_bytes(data)
    with fffs.PackedFolder(path) as pack, pack.open("a/1.jpg") as file, pytest.raises(ChecksumError, match=r"d\.ffr"):
        file.read()


# ---------------------------------------------------------------- readers as sequences


@pytest.fixture
def records() -> list[bytes]:
    return [bytes([k % 256]) * (k % 50) for k in range(300)]


@pytest.fixture
def reader(records: list[bytes], tmp_path: Path) -> fffs.FileReader:
    (tmp_path / "a.ffr").write_bytes(record_file(records))
    return fffs.FileReader(tmp_path / "a.ffr")


def test_a_reader_is_a_sequence(reader: fffs.FileReader, records: list[bytes]) -> None:
    assert [bytes(reader[k]) for k in (0, 299, -1, -300)] == [records[k] for k in (0, 299, -1, -300)]
    for part in (slice(3, 9), slice(None), slice(-4, None), slice(290, 400), slice(9, 3), slice(10, 0, -3)):
        assert list(map(bytes, reader[part])) == records[part]
    for bad in (300, -301):
        with pytest.raises(RecordIndexError):
            reader[bad]
    for wrong in ("a", 1.5, None):
        with pytest.raises(TypeError):
            reader[wrong]
    assert list(map(bytes, reader.__getitems__([5, 5, 7]))) == [records[5], records[5], records[7]]
    assert pickle.loads(pickle.dumps(reader))[7].tobytes() == records[7]


def test_iteration_reads_batches(
    reader: fffs.FileReader, records: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_sequence, "_TOGETHER", 500)
    monkeypatch.setattr(record_sequence, "_RECORDS", 64)
    sizes: list[int] = []
    read = fffs.FileReader.read

    def counted(self: fffs.FileReader, indices: Any) -> Any:
        sizes.append(len(indices))
        return read(self, indices)

    monkeypatch.setattr(fffs.FileReader, "read", counted)
    assert list(map(bytes, reader)) == records
    assert sum(sizes) == len(records)
    assert 5 < len(sizes) < 100
    assert max(sizes) <= 64
    assert [bytes(record) for record in zip(reader, range(2), strict=False).__next__()[:1]] == [records[0]]


def test_an_empty_reader(tmp_path: Path) -> None:
    (tmp_path / "e.ffr").write_bytes(record_file([]))
    with fffs.FileReader(tmp_path / "e.ffr") as reader:
        assert (list(reader), reader[:], len(reader)) == ([], [], 0)
