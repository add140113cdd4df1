"""Source files that change while they are open: a store returns the packed bytes or an error, at any moment.

A writer changes the times of a file only when it begins: a long write(2) sets them once, and a shared mapping when a
page is first written to. These tests write through a mapping, and so control which reads happen between the changes.
"""

from __future__ import annotations

import itertools
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_model import FOREVER, fault, later
from inside import (
    File,
    RecordIndex,
    RecordStore,
    TreeView,
    bag_reader,
    file_system_of,
    file_systems,
    formats_sources,
    lib,
    load_records,
    load_source,
)

import fffs
from fffs.errors import ChecksumError, SourceChangedError
from fffs.granular import BagWriter

SIZES = {"small": 5000, "large": 3_000_000, "in blocks": 3_000_000}
EXT4, TMPFS, FAT = 0xEF53, 0x01021994, 0x4D44
AGE = 61  # the age in seconds from which the times of a file are trusted when it is opened


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


def opened(path: Path, kind: str, *, age: int = 0, keeps_times: bool = True) -> TreeView:
    """Open the file as if age seconds later, on a file system that keeps times or on one that does not."""
    source = load_source([str(path)], "", True) if kind == "in blocks" else load_records([path])
    lib.fffs_fault_set(lib.FFFS_FAULT_FILE_SYSTEM, 1, FOREVER, EXT4 if keeps_times else TMPFS)
    lib.fffs_fault_set(lib.FFFS_FAULT_CLOCK, 1, FOREVER, age)
    try:
        assert source.store.native, "what ranges need is made now"
    finally:
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
    return source


@contextmanager
def mapped(path: Path, content: bytes) -> Iterator[Callable[[int], None]]:
    """Yield a function that inverts the byte of the record at an offset; the kernel does not change the times again."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        start = memory.find(content[:64])
        assert start > 0

        def invert(at: int) -> None:
            memory[start + at] ^= 0xFF

        yield invert


def read(source: TreeView, start: int, length: int) -> bytes | None:
    """Return the bytes of the only record, or None if a checksum is wrong."""
    buffer = np.empty(length, np.uint8)
    try:
        source.store.read_range_into(0, start, buffer)
    except ChecksumError:
        return None
    return buffer.tobytes()


@pytest.mark.parametrize("age", [0, AGE - 2])
def test_a_change_that_no_time_shows_is_found(kind: str, path: Path, content: bytes, age: int) -> None:
    """The writer began before the file was opened: pages stay dirty for half a minute, and no time changes."""
    with mapped(path, content) as invert:
        invert(1000), invert(1000)
        with opened(path, kind, age=age) as source:
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
        # A minute begins when the change is noticed.
        invert(1000)
        assert read(source, 100, 2000) is None
        assert read(source, 0, len(content)) is None
        invert(1000)
        assert read(source, 0, len(content)) == content


def test_what_was_verified_is_remembered_once_the_file_rests(kind: str, path: Path, content: bytes) -> None:
    """A wrong byte shows it: changes of a resting file that leave its times unchanged are not detected."""
    with opened(path, kind) as source, mapped(path, content) as invert:
        invert(1000), invert(1000)
        assert read(source, 100, 2000) == content[100:2100]
        with later():
            assert read(source, 100, 2000) == content[100:2100]
        invert(1000)
        assert read(source, 100, 2000) not in (None, content[100:2100])
        os.utime(path)
        assert read(source, 100, 2000) is None


def test_what_no_disk_of_this_machine_holds_is_checked_at_each_read(kind: str, path: Path, content: bytes) -> None:
    """The times of such files are cached or never set, so that only the bytes show a change."""
    with opened(path, kind, age=AGE, keeps_times=False) as source, mapped(path, content) as invert:
        invert(1000), invert(1000)
        with later():
            assert read(source, 100, 2000) == content[100:2100]
        invert(1000)
        with later():
            assert read(source, 100, 2000) is None


def test_only_file_systems_that_are_known_to_keep_times_are_believed(tmp_path: Path) -> None:
    keep = {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs"}
    with Path("/proc/version").open("rb") as file:
        assert not file_systems.keeps_times(file.fileno())
    assert not file_systems.keeps_times(-1)
    for folder in (tmp_path, Path("/dev/shm"), Path(__file__).parent):
        if kind := file_system_of(os.stat(folder).st_dev):  # Btrfs hides the device
            with tempfile.TemporaryFile(dir=folder) as file:
                assert file_systems.keeps_times(file.fileno()) == (kind in keep), kind


def test_what_is_known_of_a_file_system_goes_by_its_type(tmp_path: Path) -> None:
    with tempfile.TemporaryFile(dir=tmp_path) as file:
        for kind, known in ((EXT4, (True, True)), (TMPFS, (False, True)), (FAT, (False, False)), (-5, (False, False))):
            with fault(lib.FFFS_FAULT_FILE_SYSTEM, 1, FOREVER, kind):
                fd = file.fileno()
                assert (file_systems.keeps_times(fd), file_systems.has_inode_numbers(fd)) == known, kind
    assert not file_systems.has_inode_numbers(-1)


def test_all_of_a_large_record_is_read_once_however_often_its_file_changes(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(8 << 20)
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(content)
    step = 64 << 10
    with (
        opened(tmp_path / "r.ffr", "large", keeps_times=False) as source,
        fault(lib.FFFS_FAULT_PREAD, 1 << 40, 1, 0) as reads,
    ):
        assert read(source, 0, step) == content[:step]
        once = reads()
        for begin in range(step, len(content), step):
            os.utime(tmp_path / "r.ffr", ns=(begin, begin))
            assert read(source, begin, step) == content[begin : begin + step]
        assert reads() - once < 2 * len(content) // step, "a block for each read, not the record"


def test_an_old_file_is_believed_at_once(tmp_path: Path) -> None:
    content = np.random.default_rng(1).bytes(5000)
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(content)
    with opened(tmp_path / "r.ffr", "small", age=AGE) as source, mapped(tmp_path / "r.ffr", content) as invert:
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
    """Data that was read and verified while the times changed is valid nevertheless."""
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


# ---------------------------------------------------------------- files without checksums


def parts_of(folder: Path, byte: bytes) -> Path:
    """Write an OFRecord file of four records of 1000 bytes."""
    folder.mkdir()
    with fffs.ofrecord.OFRecordWriter(folder / "part-0") as writer:
        for _ in range(4):
            writer.write_one(byte * 1000)
    return folder / "part-0"


READS: dict[str, Callable[[fffs.FileReader], object]] = {
    "read": lambda reader: reader.read([1, 2]),
    "read_one": lambda reader: reader.read_one(1),
    "read_joined": lambda reader: reader.read_joined([1]),
    "read_range": lambda reader: reader.read_range(1, 0, 10),
    "read_into": lambda reader: reader.read_into([1], np.empty(1000, np.uint8)),
}


@pytest.mark.parametrize("how", READS)
def test_other_bytes_in_a_file_without_checksums_are_an_error(how: str, tmp_path: Path) -> None:
    path, other = parts_of(tmp_path / "a", b"A"), parts_of(tmp_path / "b", b"B")
    os.utime(path, ns=(1, 1))
    with fffs.FileReader(path) as reader:
        READS[how](reader)
        path.chmod(0o400)
        os.link(path, tmp_path / "another-name")
        READS[how](reader)
        path.chmod(0o600)
        path.write_bytes(other.read_bytes())
        with pytest.raises(SourceChangedError, match="part-0: its modification time or size changed while it was open"):
            READS[how](reader)
    with fffs.FileReader(path, check_data=False) as reader:
        os.utime(path, ns=(2, 2))
        READS[how](reader)


@pytest.mark.parametrize("how", READS)
def test_a_touch_counts_as_a_change_of_a_file_without_checksums(how: str, tmp_path: Path) -> None:
    path = parts_of(tmp_path / "a", b"A")
    with fffs.FileReader(path) as reader:
        READS[how](reader)
        os.utime(path, ns=(1, 1))
        for _ in range(2):
            with pytest.raises(SourceChangedError, match=r"part-0: its modification time or size .* open it again"):
                READS[how](reader)
    with fffs.FileReader(path) as reader:
        READS[how](reader)


@pytest.mark.parametrize(("module", "name"), [(formats_sources, "part-0"), (bag_reader, "x.bag")], ids=["file", "bag"])
def test_a_change_between_the_index_and_the_first_record_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str
) -> None:
    """The index is that of the old file, the bytes are those of the new one."""
    path = parts_of(tmp_path / "a", b"A")
    if name == "x.bag":
        path = tmp_path / name
        with fffs.granular.BagWriter(path) as writer:
            writer.append(b"A" * 1000)
    data = path.read_bytes()
    os.utime(path, ns=(1, 1))
    finish = module.with_checksums

    def overwritten(file: File, index: RecordIndex) -> RecordIndex:
        path.write_bytes(data.replace(b"A", b"B"))
        return finish(file, index)

    monkeypatch.setattr(module, "with_checksums", overwritten)
    with fffs.FileReader(path) if module is formats_sources else fffs.granular.BagReader(path) as opened:
        for _ in range(2):
            with pytest.raises(SourceChangedError, match=name):
                opened.read([0])
        if module is formats_sources:
            with pytest.raises(SourceChangedError, match=name):
                opened.read_range(0, 0, 10)


def test_a_file_that_changed_is_an_error_for_its_records_alone(tmp_path: Path) -> None:
    one, two = parts_of(tmp_path / "a", b"A"), parts_of(tmp_path / "b", b"B")
    with fffs.FileReader([one, two]) as reader:
        os.utime(one, ns=(1, 1))
        assert bytes(reader.read([4, 7])[1]) == b"B" * 1000
        with pytest.raises(SourceChangedError, match="a/part-0"):
            reader.read([4, 3])


@pytest.mark.parametrize("how", READS)
def test_a_bag_that_was_appended_to_must_be_opened_again(how: str, tmp_path: Path) -> None:
    with fffs.granular.BagWriter(tmp_path / "x.bag", layout="v3") as writer:
        for _ in range(4):
            writer.append(b"A" * 1000)
    os.utime(tmp_path / "x.bag", ns=(1, 1))
    with fffs.FileReader(tmp_path / "x.bag") as reader:
        READS[how](reader)
        with fffs.granular.BagWriter(tmp_path / "x.bag", layout="v3") as writer:
            writer.append(b"B" * 1000, flush=True)
            for _ in range(2):
                with pytest.raises(SourceChangedError, match=r"x\.bag: its modification time or size .* open it again"):
                    READS[how](reader)
            with fffs.FileReader(tmp_path / "x.bag") as again:
                READS[how](again)
                assert bytes(again.read_one(4)) == b"B" * 1000


@pytest.mark.parametrize("more", [0, 10])
def test_a_data_set_that_is_overwritten_in_place_is_an_error(more: int, tmp_path: Path) -> None:
    for name in ("old", "new"):
        with fffs.granular.DatasetWriter(tmp_path / name, {"text": "utf8"}, layout="v3") as writer:
            for k in range(20 + (more if name == "new" else 0)):
                writer.append({"text": f"{name} {k}"})
    for path in (tmp_path / "old").iterdir():
        os.utime(path, ns=(1, 1))
    with fffs.granular.DatasetReader(tmp_path / "old") as reader:
        assert reader[7] == {"text": "old 7"}
        for path in (tmp_path / "new").iterdir():
            (tmp_path / "old" / path.name).write_bytes(path.read_bytes())  # in place, as cp(1) does
        for k in (7, 8, range(20)):
            with pytest.raises(SourceChangedError, match=r"text\.bag: .* open it again"):
                reader[k]
    with fffs.granular.DatasetReader(tmp_path / "old") as reader:
        assert reader[7] == {"text": "new 7"}


def test_a_record_that_is_good_again_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process wrote the record while it was read: the second read counts."""
    content = b"x" * 5000
    with fffs.FileWriter(tmp_path / "r.ffr", 1) as writer:
        writer.write_one(content)
    good = (tmp_path / "r.ffr").read_bytes()
    (tmp_path / "r.ffr").write_bytes(good[:-1] + b"y")
    verify = RecordStore.verify

    def mended(store: RecordStore, numbers: np.ndarray) -> object:
        (tmp_path / "r.ffr").write_bytes(good)
        return verify(store, numbers)

    monkeypatch.setattr(RecordStore, "verify", mended)
    with fffs.FileReader(tmp_path / "r.ffr") as reader:
        assert bytes(reader.read_range(0, 0, 10)) == content[:10]


def test_another_file_behind_the_same_descriptor_is_noticed(tmp_path: Path) -> None:
    """A program may close descriptors that are not its own, and open files that get their numbers."""
    for name in ("a.bag", "b.bag"):
        with BagWriter(tmp_path / name) as writer:
            writer.append(name.encode())
        os.utime(tmp_path / name, ns=(10**18, 10**18))
    with fffs.FileReader(tmp_path / "a.bag") as reader:
        assert bytes(reader.read_one(0)) == b"a.bag"
        other = os.open(tmp_path / "b.bag", os.O_RDONLY)
        os.dup2(other, reader.store.files[0].file.descriptor)
        os.close(other)
        for read in (reader.read_one, lambda k: reader.read([k]), lambda k: reader.read_range(k, 0, 2)):
            with pytest.raises(SourceChangedError):
                read(0)


def test_inodes_are_not_compared_where_they_mean_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with BagWriter(tmp_path / "a.bag") as writer:
        writer.append(b"bytes")
    monkeypatch.setattr("fffs.files.local.has_inode_numbers", lambda _fd: False)
    with fffs.FileReader(tmp_path / "a.bag") as reader:
        assert (reader.store.files[0].stamp.inode, bytes(reader.read_one(0))) == (0, b"bytes")
