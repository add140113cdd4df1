"""Source files that change while they are open: what a store gives out is what was packed, at whatever moment they do.

A writer's changes show in the file's times only when it begins: one long write(2) sets them once, a shared mapping when
a page is first written to. These tests write through a mapping, and so decide what happens between which reads.
"""

from __future__ import annotations

import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from engine_model import fault, later

import fffs
from fffs.errors import ChecksumError
from fffs.layouts import Source, load_records, load_source
from fffs.native import lib

SIZES = {"small": 5000, "large": 3_000_000, "in blocks": 3_000_000}
AGE = 3.1  # seconds from which on the times of a file that is opened are believed


@pytest.fixture(params=SIZES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def content(kind: str) -> bytes:
    return np.random.default_rng(1).bytes(SIZES[kind])


@pytest.fixture
def path(kind: str, content: bytes, tmp_path: Path) -> Path:
    if kind == "in blocks":
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "file").write_bytes(content)
        fffs.pack_folder(tmp_path / "folder", tmp_path / "r.ffr")
    else:
        with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
            writer.write_one(content)
    return tmp_path / "r.ffr"


def opened(path: Path, kind: str) -> Source:
    return load_source([str(path)], "", True) if kind == "in blocks" else load_records([path])


@contextmanager
def mapped(path: Path, content: bytes) -> Iterator[Callable[[int], None]]:
    """A function that inverts the byte of the record at an offset, after which the kernel does not look again."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        start = memory.find(content[:64])
        assert start > 0

        def invert(at: int) -> None:
            memory[start + at] ^= 0xFF

        yield invert


def read(source: Source, start: int, length: int) -> bytes | None:
    """The bytes of the only record, or None for a checksum that is wrong."""
    buffer = np.empty(length, np.uint8)
    try:
        source.store.read_range_into(0, start, buffer)
    except ChecksumError:
        return None
    return buffer.tobytes()


def test_a_change_that_no_time_shows_is_found(kind: str, path: Path, content: bytes) -> None:
    """The writer was at it before the file was opened."""
    with mapped(path, content) as invert:
        invert(1000), invert(1000)
        with opened(path, kind) as source:
            assert read(source, 100, 2000) == content[100:2100]
            assert source.store.verified(0) == (kind != "in blocks")
            before = os.stat(path).st_mtime_ns
            invert(1000)
            assert os.stat(path).st_mtime_ns == before
            assert read(source, 100, 2000) is None
            invert(1000)
            assert read(source, 100, 2000) == content[100:2100]


def test_the_rest_of_a_change_whose_begin_was_noticed_is_found(kind: str, path: Path, content: bytes) -> None:
    with opened(path, kind) as source, mapped(path, content) as invert:
        with later():
            assert read(source, 100, 2000) == content[100:2100]
            invert(1000), invert(1000)
            assert read(source, 100, 2000) == content[100:2100]
        # A minute begins with the moment at which the change is noticed.
        invert(1000)
        assert read(source, 100, 2000) is None
        assert read(source, 0, len(content)) is None
        invert(1000)
        assert read(source, 0, len(content)) == content


def test_what_was_verified_is_remembered_once_the_file_rests(kind: str, path: Path, content: bytes) -> None:
    """Seen by a wrong byte: who can change a file that rests without a trace is believed."""
    with opened(path, kind) as source, mapped(path, content) as invert:
        invert(1000), invert(1000)
        assert read(source, 100, 2000) == content[100:2100]
        with later():
            assert read(source, 100, 2000) == content[100:2100]
        invert(1000)
        assert read(source, 100, 2000) not in (None, content[100:2100])
        os.utime(path)
        assert read(source, 100, 2000) is None


def test_an_old_file_is_believed_at_once(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(5000)
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(content)
    time.sleep(AGE)
    with opened(tmp_path / "r.ffr", "small") as source, mapped(tmp_path / "r.ffr", content) as invert:
        assert read(source, 100, 2000) == content[100:2100]
        with fault(lib.FFFS_FAULT_CLOCK, 1 << 40, 1, 0) as looks:
            assert read(source, 100, 2000) == content[100:2100]
            assert looks() == 0, "nobody needs to know what time it is"
        invert(1000)
        assert read(source, 100, 2000) is None


def test_no_more_is_read_of_a_file_that_rests(kind: str, path: Path, content: bytes) -> None:
    with opened(path, kind) as source:
        assert read(source, 100, 2000) == content[100:2100]
        with later():
            assert read(source, 100, 2000) == content[100:2100]
            with fault(lib.FFFS_FAULT_PREAD, 1 << 40, 1, 0) as reads:
                assert read(source, 100, 2000) == content[100:2100]
                assert reads() == 1


def test_a_writer_that_never_rests_keeps_nobody_from_reading(kind: str, path: Path, content: bytes) -> None:
    """What was read and checked while the times changed is good all the same."""
    ended = threading.Event()

    def touch() -> None:
        for k in itertools.takewhile(lambda _: not ended.is_set(), itertools.count(1)):
            os.utime(path, ns=(k, k))

    with opened(path, kind) as source:
        toucher = threading.Thread(target=touch)
        toucher.start()
        try:
            for k in range(2000 if kind == "small" else 50):
                assert read(source, k, 3000) == content[k : k + 3000]
        finally:
            ended.set()
            toucher.join()
