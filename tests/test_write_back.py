"""Large files are written to the disk while they are produced, not all at the end."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from inside import lib, write_back

import fffs
from fffs.errors import WriterError
from fffs.granular import BagWriter
from fffs.tfrecord import TFRecordWriter

RECORDS, SIZE = 40, 1_000_000
RECORD = os.urandom(SIZE)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The size of the file at each request for write-back."""
    sizes: list[int] = []

    def start(fd: int) -> int:
        sizes.append(os.fstat(fd).st_size)
        return int(lib.fffs_start_writing(fd))

    monkeypatch.setattr(write_back, "lib", SimpleNamespace(fffs_start_writing=start))
    return sizes


def _ffrecord(folder: Path, asked: list[int]) -> None:
    with fffs.FileWriter(folder / "a.ffr", RECORDS) as writer:
        for _ in range(RECORDS):
            writer.write_one(RECORD)


def _tfrecord(folder: Path, asked: list[int]) -> None:
    with TFRecordWriter(folder / "a.tfrecord") as writer:
        for _ in range(RECORDS):
            writer.write_one(RECORD)


def _bag(folder: Path, asked: list[int]) -> None:
    with BagWriter(folder / "a.bag") as writer:
        for _ in range(RECORDS):
            writer.append(RECORD)


def _converted(folder: Path, asked: list[int]) -> None:
    _ffrecord(folder, asked)
    asked.clear()
    fffs.convert(folder / "a.ffr", folder / "b.tfrecord")


def _grown_bag(folder: Path, asked: list[int]) -> None:
    with BagWriter(folder / "a.bag", layout="v3") as writer:
        for _ in range(RECORDS):
            writer.append(RECORD)


def _packed(folder: Path, asked: list[int]) -> None:
    (folder / "files").mkdir()
    for k in range(4):
        (folder / "files" / f"{k}").write_bytes(RECORD * (RECORDS // 4))
    fffs.pack_folder(folder / "files", folder / "b.ffr")


def _unpacked(folder: Path, asked: list[int]) -> None:
    (folder / "files").mkdir()
    (folder / "files/one").write_bytes(RECORD * RECORDS)
    fffs.pack_folder(folder / "files", folder / "b.ffr")
    asked.clear()
    fffs.unpack(folder / "b.ffr", folder / "c")


def _packed_archive(folder: Path, asked: list[int]) -> None:
    (folder / "files").mkdir()
    for k in range(RECORDS):
        (folder / "files" / f"{k}").write_bytes(RECORD)
    subprocess.run(["tar", "cf", folder / "a.tar", "-C", folder, "files"], check=True)
    fffs.convert(folder / "a.tar", folder / "b.ffr")


WRITERS = [_ffrecord, _tfrecord, _bag, _grown_bag, _converted, _packed, _packed_archive, _unpacked]


@pytest.mark.parametrize("write", WRITERS)
def test_the_disk_begins_before_the_end(
    tmp_path: Path, asked: list[int], write: Callable[[Path, list[int]], None]
) -> None:
    write(tmp_path, asked)
    assert 2 <= len(asked) <= 5  # 40 MB each, in steps of 8 MiB, or of the 16 MiB in which files are copied
    assert asked[-1] > 20_000_000


def test_small_files_are_left_to_the_end(tmp_path: Path, asked: list[int]) -> None:
    with fffs.FileWriter(tmp_path / "a.ffr", 7) as writer:
        for _ in range(7):
            writer.write_one(RECORD)
    assert asked == []


def test_what_cannot_be_written_early_says_so(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.write(b"a")
        assert lib.fffs_start_writing(file.fileno()) == 0
    end, other = os.pipe()
    os.close(end)
    assert lib.fffs_start_writing(other) == -errno.ESPIPE
    os.close(other)
    assert lib.fffs_start_writing(-1) == -errno.EBADF


@pytest.mark.parametrize("kind", [fffs.FileWriter, TFRecordWriter, BagWriter])
def test_an_interrupt_leaves_no_writer_that_could_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    """It is unknown whether the record is in the file."""

    def interrupt(fd: int) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(write_back, "lib", SimpleNamespace(fffs_start_writing=interrupt))
    target = tmp_path / {fffs.FileWriter: "a.ffr", TFRecordWriter: "a.tfrecord", BagWriter: "a.bag"}[kind]
    writer = kind(target, RECORDS) if kind is fffs.FileWriter else kind(target)
    write = writer.append if kind is BagWriter else writer.write_one
    with pytest.raises(KeyboardInterrupt):
        for _ in range(RECORDS):
            write(RECORD)
    with pytest.raises(WriterError, match="closed"):
        write(RECORD)
    writer.close()
    assert list(tmp_path.iterdir()) == []
