"""Unpacking very many small files, which are made in native code, several in one call."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from builders import MIB, Pack, differences, once, snapshot, stretched
from engine_model import FOREVER, fault
from inside import NewFile, RecordStore, lib, load_source

import fffs
from fffs.errors import ChecksumError, SourceChangedError, WriteError
from fffs.ofrecord import OFRecordWriter
from fffs.tfrecord import TFRecordWriter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two folders of more files than are made in one call, of sizes around that of a call, and one large file."""
    for name in ("one", "two"):
        (tmp_path / "f" / name).mkdir(parents=True)
        for k in range(300):
            (tmp_path / "f" / name / f"{k:03}").write_bytes(stretched(k, k))
            (tmp_path / "f" / name / f"{k:03}").chmod(0o400 + k % 64)
    for size in (MIB - 1, MIB, MIB + 1, 0):
        (tmp_path / "f" / "two" / f"large-{size}").write_bytes(stretched(size))
    return tmp_path / "f"


@pytest.fixture
def pack(folder: Path) -> Path:
    (folder.parent / "room").mkdir()
    fffs.pack_folder(folder, folder.parent / "room" / "p.ffr")
    return folder.parent / "room" / "p.ffr"


def assert_nothing_left(pack: Path) -> None:
    assert os.listdir(pack.parent) == [pack.name]


def damage(pack: Path, *records: int) -> None:
    """Change a byte of records."""
    data = bytearray(pack.read_bytes())
    parts = Pack.parse(bytes(data))
    ends = np.cumsum([len(record) for record in parts.records]) + 12 + 12 * (len(parts.records) + 1)
    for record in records:
        data[int(ends[record]) - 1] ^= 1
    pack.write_bytes(data)


# ---------------------------------------------------------------- what is made


@pytest.mark.parametrize("jobs", [1, 3])
def test_files_around_the_limits_of_a_call_come_back(pack: Path, folder: Path, jobs: int) -> None:
    progress: list[tuple[int, int]] = []
    fffs.unpack(pack, pack.parent / "g", jobs=jobs, progress=lambda *step: progress.append(step))
    assert differences(snapshot(folder), snapshot(pack.parent / "g")) == {}
    assert max(progress) == (progress[0][1],) * 2
    assert len(progress) < 20, "not one for each file"


def test_small_files_are_not_copied_one_by_one(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[int] = []

    def copy(store: RecordStore, record: int, target: NewFile, *rest: object) -> None:
        copied.append(store.length(record))

    monkeypatch.setattr(RecordStore, "copy_to", copy)
    fffs.unpack(pack, pack.parent / "g")
    assert copied == [MIB + 1]


@pytest.mark.parametrize(
    "time", [0, -1, -1_000_000_000, -1_000_000_001, 1, 999_999_999, 2**62 + 1, -(2**63), 2**63 - 1]
)
def test_any_time_is_set_as_the_system_would(tmp_path: Path, time: int) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").touch()
    fffs.pack_folder(tmp_path / "f", tmp_path / "p.ffr")
    parts = Pack.parse((tmp_path / "p.ffr").read_bytes())
    assert parts.trailer
    parts.trailer.arrays["mtime"][:] = time
    (tmp_path / "p.ffr").write_bytes(parts.build())
    fffs.unpack(tmp_path / "p.ffr", tmp_path / "g")
    os.utime(tmp_path / "f" / "a", ns=(time, time))  # a file system may have a narrower range
    assert (tmp_path / "g" / "a").stat().st_mtime_ns == (tmp_path / "f" / "a").stat().st_mtime_ns
    assert (tmp_path / "g" / "a").stat().st_atime_ns == (tmp_path / "f" / "a").stat().st_atime_ns


def test_records_in_another_order_than_names_come_back(pack: Path, folder: Path) -> None:
    """As in the packs of ffrecord, whose records have the order of listdir."""
    parts = Pack.parse(pack.read_bytes())
    assert parts.trailer
    refs, mode = parts.trailer.arrays["ref"], parts.trailer.arrays["mode"]
    files = np.flatnonzero(mode & 0o170000 == 0o100000)
    small = files[[len(parts.records[k]) < 300 for k in refs[files]]]
    order = np.random.default_rng(1).permutation(refs[small])
    records = list(parts.records)
    for old, new in zip(refs[small], order, strict=True):
        parts.records[new] = records[old]
    refs[small] = order
    pack.write_bytes(parts.build())
    fffs.unpack(pack, pack.parent / "g")
    assert differences(snapshot(folder), snapshot(pack.parent / "g")) == {}


@pytest.mark.parametrize(("kind", "name"), [(TFRecordWriter, "{}.tfrecord"), (OFRecordWriter, "part-{}")])
def test_records_of_formats_with_bytes_between_them_and_of_several_parts_come_back(
    tmp_path: Path, kind: type[TFRecordWriter], name: str
) -> None:
    (tmp_path / "parts").mkdir()
    records = [b"%d" % k * (1 + k % 70) for k in range(700)]
    for part in range(2):
        with kind(tmp_path / "parts" / name.format(part)) as writer:
            for record in records[350 * part : 350 * part + 350]:
                writer.write_one(record)
    fffs.unpack(tmp_path / "parts", tmp_path / "g")
    assert [(tmp_path / "g" / f"{k:06}").read_bytes() for k in range(700)] == records


# ---------------------------------------------------------------- records that are bad


@pytest.mark.parametrize("bad", [[1], [256], [299], [120, 121, 290], [300], [2, 603]])
def test_only_bad_records_are_left_out_wherever_they_are_in_a_call(pack: Path, folder: Path, bad: list[int]) -> None:
    """Records 0 and 300 are empty."""
    damage(pack, *(k + (k == 300) for k in bad))
    left_out: dict[str, Exception] = {}
    fffs.unpack(pack, pack.parent / "g", leave_out=left_out.__setitem__)
    assert {type(error) for error in left_out.values()} == {ChecksumError}
    assert len(left_out) == len(bad)
    for path in left_out:
        (folder / Path(path).relative_to(pack.parent / "g")).unlink()
    found = {path: entry for path, entry in snapshot(pack.parent / "g").items() if entry[2] is not None}
    assert found == {path: entry for path, entry in snapshot(folder).items() if entry[2] is not None}


@pytest.mark.parametrize("jobs", [1, 4])
def test_a_bad_record_in_a_call_is_named_and_leaves_nothing(pack: Path, jobs: int) -> None:
    damage(pack, 150)
    with pytest.raises(ChecksumError, match=r"p\.ffr: record 150: checksum mismatch .*\(file 'one/150'\)$"):
        fffs.unpack(pack, pack.parent / "g", jobs=jobs)
    assert_nothing_left(pack)


def test_a_pack_that_is_damaged_while_it_is_unpacked_is_an_error(pack: Path) -> None:
    with pytest.raises(ChecksumError, match=r"record 500: .*\(file 'two/200'\)$"):
        fffs.unpack(pack, pack.parent / "g", jobs=1, progress=once(lambda: damage(pack, 500)))
    assert_nothing_left(pack)


def test_a_pack_that_is_truncated_while_it_is_unpacked_is_an_error(pack: Path) -> None:
    with pytest.raises(fffs.errors.TruncatedError, match=r"record \d+ .*\(file 'one/.*'\)$"):
        fffs.unpack(pack, pack.parent / "g", jobs=1, progress=once(lambda: os.truncate(pack, 12 + 12 * 609 + 33_000)))
    assert_nothing_left(pack)


def test_a_source_without_checksums_that_changes_is_an_error(tmp_path: Path) -> None:
    with OFRecordWriter(tmp_path / "r.ofrecord") as writer:
        for k in range(600):
            writer.write_one(b"%d" % k)

    def touch() -> None:
        os.utime(tmp_path / "r.ofrecord", ns=(1, 1))

    with (
        load_source([tmp_path / "r.ofrecord"], format="ofrecord") as source,
        pytest.raises(SourceChangedError, match=r"r\.ofrecord: its modification time or size changed"),
    ):
        fffs.unpack(source, tmp_path / "g", jobs=1, progress=once(touch))
    assert os.listdir(tmp_path) == ["r.ofrecord"]


# ---------------------------------------------------------------- systems that fail


@pytest.mark.parametrize(("result", "count"), [(1, FOREVER), (-errno.EINTR, 1), (-errno.EINTR, 700)])
def test_short_and_interrupted_writes_are_continued(pack: Path, folder: Path, result: int, count: int) -> None:
    (folder / "two" / f"large-{MIB + 1}").unlink()
    for size in (MIB - 1, MIB):
        os.truncate(folder / "two" / f"large-{size}", 5000)
    fffs.pack_folder(folder, pack)
    with fault(lib.FFFS_FAULT_PWRITE, 1, count, result):
        fffs.unpack(pack, pack.parent / "g")
    assert differences(snapshot(folder), snapshot(pack.parent / "g")) == {}


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize(("result", "words"), [(-errno.ENOSPC, "No space left on device"), (0, "Input/output error")])
def test_a_write_that_fails_names_its_file_and_leaves_nothing(pack: Path, jobs: int, result: int, words: str) -> None:
    name = "[^/]+" if jobs > 1 else "041"  # record 0 is empty
    with (
        fault(lib.FFFS_FAULT_PWRITE, 41, 1, result),
        pytest.raises(WriteError, match=rf"/g/(one|two)/{name}: cannot write: {words}$"),
    ):
        fffs.unpack(pack, pack.parent / "g", jobs=jobs)
    assert_nothing_left(pack)


def test_a_mode_that_fails_to_be_set_is_an_error(pack: Path) -> None:
    with (
        fault(lib.FFFS_FAULT_ATTRIBUTES, 300, 1, -errno.EIO),
        pytest.raises(WriteError, match="/g/one/299: cannot write: Input/output error"),
    ):
        fffs.unpack(pack, pack.parent / "g", jobs=1)
    assert_nothing_left(pack)


def test_an_error_of_the_disk_that_looks_like_a_bad_record_is_none(pack: Path) -> None:
    """ext4 says EBADMSG when the checksum of a block of its own is wrong."""
    with (
        fault(lib.FFFS_FAULT_ATTRIBUTES, 7, 1, -errno.EBADMSG),
        pytest.raises(WriteError, match="/g/one/006: cannot write: Input/output error"),
    ):
        fffs.unpack(pack, pack.parent / "g", jobs=1, leave_out=lambda *_: None)
    assert_nothing_left(pack)


def test_a_lack_of_descriptors_is_an_error_that_says_what_to_do(pack: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def allow_no_more() -> None:
        used = max(int(fd) for fd in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used, before[1]))
        for _ in range(used):  # fill what is free below
            try:
                filled.append(os.open("/", os.O_RDONLY))
            except OSError:
                break

    filled: list[int] = []
    try:
        with pytest.raises(WriteError, match=r"/g/one/256: cannot write: Too many open files; .*ulimit"):
            fffs.unpack(pack, pack.parent / "g", jobs=1, progress=once(allow_no_more))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in filled:
            os.close(fd)


def test_a_name_that_exists_is_neither_replaced_nor_followed(pack: Path) -> None:
    def plant() -> None:
        (temporary,) = pack.parent.glob(".*.fffs-tmp")
        (temporary / "two" / "123").symlink_to(pack)

    before = pack.read_bytes()
    with pytest.raises(WriteError, match="/g/two/123: cannot write: File exists"):
        fffs.unpack(pack, pack.parent / "g", jobs=1, progress=once(plant))
    assert pack.read_bytes() == before
    assert_nothing_left(pack)


def test_a_lack_of_memory_leaves_nothing(pack: Path) -> None:
    """Some allocations are not needed: the engine does without threads, and the cache of indexes without an entry."""
    code = """
        import os, sys, fffs
        from fffs.native import lib
        failed = 0
        for allocation in range(1, 6):
            lib.fffs_fault_set(lib.FFFS_FAULT_MEMORY, allocation, 9, -12)
            try:
                fffs.unpack("p.ffr", f"g{allocation}", jobs=1)
            except MemoryError:
                failed += 1
                assert f"g{allocation}" not in os.listdir(), os.listdir()
        assert failed and not [name for name in os.listdir() if name.endswith("fffs-tmp")]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=pack.parent, check=True)


@pytest.mark.parametrize("jobs", [1, 4])
def test_an_interrupt_between_two_calls_leaves_nothing(pack: Path, jobs: int) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fffs.unpack(pack, pack.parent / "g", jobs=jobs, progress=once(interrupt))
    assert_nothing_left(pack)


def test_no_file_is_open_under_the_number_of_a_standard_stream(pack: Path) -> None:
    code = """
        import os, sys, threading, time, fffs
        from fffs.native import lib
        lib.fffs_fault_set(lib.FFFS_FAULT_ATTRIBUTES, 1, 1, lib.FFFS_FAULT_HOLD)
        for fd in range(3):
            os.close(fd)
        unpacking = threading.Thread(target=fffs.unpack, args=("p.ffr", "g"), kwargs={"jobs": 1})
        unpacking.start()
        while not lib.fffs_fault_held():
            assert unpacking.is_alive()
            time.sleep(0.001)
        paths = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in range(50)}
        lib.fffs_fault_set(lib.FFFS_FAULT_NONE, 0, 0, 0)
        unpacking.join()
        (number,) = [fd for fd, path in paths.items() if path.endswith("/one/000")]
        sys.exit(number < 3)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=pack.parent, check=True)
