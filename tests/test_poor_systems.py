"""Writers and readers on systems that lack something which others have: locks, links, descriptors, /proc."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from builders import split_records

import fffs
from fffs.dumping import dump
from fffs.granular import BagReader, BagWriter
from fffs.granular.streams import UnlockedWarning
from fffs.unpacking import unpack

RECORDS = [b"first", b"", b"third"]


def write(target: Path) -> None:
    with fffs.FileWriter(target.with_name("w.ffr"), len(RECORDS)) as writer:
        for record in RECORDS:
            writer.write_one(record)


def write_pack(target: Path) -> None:
    (target / "f").mkdir(parents=True)
    (target / "f" / "file").write_bytes(b"content")
    fffs.pack_folder(target / "f", target / "p.ffr")


# ---------------------------------------------------------------- without locks


def pack_and_unpack(folder: Path) -> None:
    write_pack(folder / "made")
    unpack(folder / "made" / "p.ffr", folder / "target")
    assert (folder / "target" / "file").read_bytes() == b"content"


def convert_and_replace(folder: Path) -> None:
    write(folder / "w.ffr")
    for _ in range(2):
        fffs.convert(folder / "w.ffr", folder / "target", to="tfrecord", verify=True, force=True)


def dump_parts(folder: Path) -> None:
    dump(RECORDS, folder / "target", 2)
    assert [split_records(path.read_bytes()) for path in sorted((folder / "target").iterdir())] == [
        RECORDS[:1],
        RECORDS[1:],
    ]


def write_bags(folder: Path) -> None:
    for name, layout in (("new.bag", "v1"), ("target", "v3"), ("target", "v3")):
        name = name if name.endswith(".bag") else f"{name}.bag"
        with BagWriter(folder / name, layout) as writer:
            writer.append(b"record")
    with BagReader(folder / "target.bag") as reader:
        assert list(reader) == [b"record"] * 2


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
@pytest.mark.parametrize(
    "work", [lambda folder: write(folder / "x"), pack_and_unpack, convert_and_replace, dump_parts, write_bags]
)
def test_where_there_are_no_locks_writers_do_without(
    work: Callable[[Path], None], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    leftovers = {tmp_path / f".{name}.0123456789ab.fffs-tmp" for name in ("w.ffr", "target")}
    for path in leftovers:
        path.write_bytes(b"perhaps somebody writes it")
    if work is write_bags:
        with pytest.warns(UnlockedWarning, match=r"target\.bag: its file system has no locks"):
            work(tmp_path)
    else:
        work(tmp_path)
    assert set(tmp_path.rglob("*.fffs-tmp")) == leftovers, "whose they are is not known"


def test_the_folder_of_an_owner_that_cannot_be_known_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be complete, and about to be renamed."""
    write_pack(tmp_path)
    living = tmp_path / ".target.0123456789ab.fffs-tmp"
    living.mkdir()
    original = os.open

    def not_ours(path: bytes, flags: int, *arguments: int, **options: int) -> int:
        if path == os.fsencode(living.name) and not flags & os.O_PATH:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return original(path, flags, *arguments, **options)

    def no_locks(*_: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    living.chmod(0o250)
    monkeypatch.setattr(os, "open", not_ours)
    monkeypatch.setattr(fcntl, "flock", no_locks)
    unpack(tmp_path / "p.ffr", tmp_path / "target")
    assert living.stat().st_mode & 0o7777 == 0o250


def test_a_folder_whose_lock_was_not_seen_is_not_put_in_place_without_its_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NFS, where a folder's lock is one of its machine alone: another unpacks to the same target meanwhile."""
    write_pack(tmp_path)
    living = tmp_path / ".target.0123456789ab.fffs-tmp"
    living.mkdir()
    (living / "file").write_bytes(b"complete")
    original, renamed = os.unlink, []

    def complete_meanwhile(name: bytes, **options: int) -> None:
        if name == b"file" and not renamed:
            renamed.append(True)
            with pytest.raises(FileNotFoundError):
                living.rename(tmp_path / "other")
        original(name, **options)

    monkeypatch.setattr(os, "unlink", complete_meanwhile)
    unpack(tmp_path / "p.ffr", tmp_path / "target")
    assert renamed and not living.exists()
    assert sorted(os.listdir(tmp_path)) == ["f", "p.ffr", "target"]
