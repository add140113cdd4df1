"""Cached indexes: used if nothing changed, ignored in all other cases, and never an error."""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import stat
import struct
import time
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from builders import as_nobody, small_disk
from frame_files import of_frame, path_of, tf_frame
from fuzz import frames as models
from inside import OFRECORD, TFRECORD, LocalFile, file_systems, frames, index_cache
from inside import ofrecord_files as ofrecord
from inside import run_program as run
from inside import tfrecord_files as tfrecord

from fffs.errors import FormatError

COUNT = 1030
RECORDS = b"".join(tf_frame(b"%d" % k) for k in range(COUNT))
PARTS = b"".join(of_frame(b"%d" % k) for k in range(COUNT))


class Counted:
    """Counts the scans of files."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.scans = 0
        original = frames.scan

        def scan(*arguments: Any, **options: Any) -> Any:
            self.scans += 1
            return original(*arguments, **options)

        patch.setattr(frames, "scan", scan)

    def load(self, path: Path, module: Any = tfrecord, **options: Any) -> tuple[list[models.Row], int]:
        """Return the index, and the number of scans."""
        before = self.scans
        with LocalFile.open(path) as file:
            return models.table(module.load_index(file, **options)), self.scans - before


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, for files of any age on any file system."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FFFS_CACHE", raising=False)
    monkeypatch.setattr(index_cache, "SETTLED", -1.0)
    monkeypatch.setattr(index_cache, "keeps_times", lambda fd: True)
    monkeypatch.setattr(index_cache, "_kept", itertools.repeat(1))  # excess entries are removed after each new one
    return tmp_path / "cache" / "fffs"


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


def entry_of(cache: Path) -> Path:
    (entry,) = cache.iterdir()
    return entry


EXPECTED = models.tf_frames(RECORDS)[0]


@pytest.mark.parametrize(
    ("module", "data", "model"),
    [(tfrecord, RECORDS, models.tf_frames), (ofrecord, PARTS, models.of_frames)],
    ids=["tfrecord", "ofrecord"],
)
def test_the_second_time_nothing_is_scanned(
    tmp_path: Path, cache: Path, counted: Counted, module: Any, data: bytes, model: Any
) -> None:
    path = path_of(tmp_path, "file", data)
    assert counted.load(path, module) == (model(data)[0], 1)
    assert counted.load(path, module) == (model(data)[0], 0)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(entry_of(cache).stat().st_mode) == 0o600


def test_an_entry_is_read_in_parts_if_the_system_reads_no_more_at_a_time(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, preadv = path_of(tmp_path, "file", RECORDS), os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: preadv(fd, [buffers[0][:7]], offset))
    assert counted.load(path, tfrecord) == (EXPECTED, 1)
    assert counted.load(path, tfrecord) == (EXPECTED, 0)


def test_the_file_may_have_another_name_but_not_another_format(tmp_path: Path, cache: Path, counted: Counted) -> None:
    path = path_of(tmp_path, "file", PARTS)
    counted.load(path, ofrecord)
    os.rename(path, tmp_path / "new")  # changes ctime on most file systems
    assert counted.load(tmp_path / "new", ofrecord)[0] == models.of_frames(PARTS)[0]
    with pytest.raises(FormatError):
        counted.load(tmp_path / "new", tfrecord)


def change_size(path: Path) -> None:
    with path.open("ab") as file:
        file.write(tf_frame(b"more"))


def change_content(path: Path) -> None:
    before = path.stat()
    path.write_bytes(RECORDS[len(tf_frame(b"0")) :] + tf_frame(b"0"))
    assert path.stat().st_size == before.st_size


def change_content_and_put_back_the_time(path: Path) -> None:
    before = path.stat()
    change_content(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def change_the_time(path: Path) -> None:
    os.utime(path, ns=(0, 0))


def change_the_file(path: Path) -> None:
    other = path_of(path.parent, "other", RECORDS + tf_frame(b"more"))
    os.rename(other, path)


@pytest.mark.parametrize(
    "change", [change_size, change_content, change_content_and_put_back_the_time, change_the_time, change_the_file]
)
def test_a_file_that_changed_is_scanned_again(tmp_path: Path, cache: Path, counted: Counted, change: Any) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    time.sleep(0.01)  # the clock of a file system may be this coarse
    change(path)
    expected = models.tf_frames(path.read_bytes())[0]
    assert counted.load(path) == (expected, 1)
    assert counted.load(path) == (expected, 0)


def test_a_file_that_was_just_written_is_not_cached(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_cache, "SETTLED", 3600.0)
    path = path_of(tmp_path, "file", RECORDS)
    assert [counted.load(path)[1] for _ in range(2)] == [1, 1]
    assert not cache.exists()


def test_a_scan_without_checks_is_not_cached(tmp_path: Path, cache: Path, counted: Counted) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path, check_data=False)
    assert not cache.exists()
    counted.load(path)
    assert counted.load(path, check_data=False) == (EXPECTED, 0)


def test_damaged_and_small_files_are_not_cached(tmp_path: Path, cache: Path, counted: Counted) -> None:
    for data in (RECORDS[:-1], b"".join(tf_frame(b"") for _ in range(index_cache.FEWEST - 1))):
        with contextlib.suppress(FormatError):
            counted.load(path_of(tmp_path, "file", data))
    assert not cache.exists()


def test_nothing_is_written_back_of_a_file_too_small_to_be_kept(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[int] = []

    class Engine:
        @staticmethod
        def fffs_clean_pages(fd: int) -> int:
            cleaned.append(fd)
            return 0

    monkeypatch.setattr(index_cache, "lib", Engine)
    few = index_cache.FEWEST - 1
    for module, of in ((tfrecord, tf_frame), (ofrecord, of_frame)):
        for data in (b"", of(b"x") * 100, of(b"") * few):
            counted.load(path_of(tmp_path, "file", data), module)
        assert not cleaned
        counted.load(path_of(tmp_path, "file", of(b"") * (few + 1)), module)
        assert len(cleaned) == len(list(cache.iterdir())) > 0
        cleaned.clear()
        for entry in cache.iterdir():
            entry.unlink()


def test_an_entry_with_a_byte_changed_is_ignored_and_made_anew(tmp_path: Path, cache: Path, counted: Counted) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    entry = entry_of(cache)
    good = entry.read_bytes()
    header, tail = index_cache.HEADER.size + 16, len(good) - 16
    for at in [*range(header), *range(header, tail, 37), *range(tail, len(good))]:
        entry.write_bytes(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        assert counted.load(path) == (EXPECTED, 1), at
        assert entry.read_bytes() == good


@pytest.mark.parametrize("size", [0, 1, 40, 80, 100, 2000])
def test_an_entry_that_was_cut_is_ignored(tmp_path: Path, cache: Path, counted: Counted, size: int) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    os.truncate(entry_of(cache), size)
    assert counted.load(path) == (EXPECTED, 1)


def rewritten(entry: Path, change: Any) -> None:
    """Change the numbers of an entry, and correct its checksum."""
    data = bytearray(entry.read_bytes()[:-4])
    change(data)
    entry.write_bytes(bytes(data) + struct.pack("<I", zlib.crc32(bytes(data))))


def set_number(at: int, value: int) -> Any:
    return lambda data: struct.pack_into("<q", data, at, value)


BODY = index_cache.HEADER.size
COUNT_AT = BODY - 16


@pytest.mark.parametrize(
    "change",
    [
        set_number(COUNT_AT, COUNT - 1),
        set_number(COUNT_AT, 2**40),
        set_number(COUNT_AT, -1),
        set_number(BODY, -1),
        set_number(BODY, 2**62),
        set_number(BODY + 8, 0),
        set_number(BODY + 8 * (COUNT - 1), len(RECORDS)),
        lambda data: data.extend(bytes(12)),
    ],
    ids=["one fewer", "2**40", "-1", "end -1", "end 2**62", "backwards", "last end", "longer"],
)
def test_an_entry_that_contradicts_the_file_is_ignored(
    tmp_path: Path, cache: Path, counted: Counted, change: Any
) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    rewritten(entry_of(cache), change)
    assert counted.load(path) == (EXPECTED, 1)


def test_checksums_that_somebody_computed_have_a_place(tmp_path: Path, cache: Path, counted: Counted) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    key = key_of(path)
    entry = index_cache.load(TFRECORD.kind, key)
    assert entry is not None
    assert (entry.check, len(entry.checksums)) == (TFRECORD.check, COUNT)  # type: ignore[arg-type]
    index_cache.store(OFRECORD.kind, key, entry)
    again = index_cache.load(OFRECORD.kind, key)
    assert again is not None
    assert again.checksums.tolist() == entry.checksums.tolist()  # type: ignore[union-attr]


# ---------------------------------------------------------------- other files with the same key


def key_of(path: Path) -> index_cache.Key:
    with LocalFile.open(path) as file:
        key = index_cache.key_of(file)
    assert key is not None
    return key


def of_file(lengths: list[int]) -> bytes:
    return b"".join(of_frame(bytes(length)) for length in lengths)


def test_an_entry_of_a_file_with_the_same_key_and_other_frames_is_not_believed(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such keys occur with two images with fixed times that are mounted one after the other."""
    lengths = [k % 7 + 8 for k in range(COUNT)]
    other = [*lengths[1:], lengths[0]]
    one, two = path_of(tmp_path, "one", of_file(lengths)), path_of(tmp_path, "two", of_file(other))
    key = key_of(one)
    monkeypatch.setattr(index_cache, "key_of", lambda fd: key)
    assert counted.load(one, ofrecord) == (models.of_frames(of_file(lengths))[0], 1)
    assert counted.load(one, ofrecord)[1] == 0
    assert counted.load(two, ofrecord) == (models.of_frames(of_file(other))[0], 1)


def test_file_systems_with_one_device_number_and_inode_are_told_apart(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    monkeypatch.setattr(index_cache, "_system", lambda fd: bytes(range(16)))
    assert counted.load(path) == (EXPECTED, 1)


def test_a_file_whose_change_time_comes_from_the_maker_of_an_image_is_not_cached(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two such images may have files with the same key that differ in so few frames that a sample shows none."""
    path, fstat = path_of(tmp_path, "file", RECORDS), os.fstat
    assert path.stat().st_ctime_ns % 10**9

    def of_an_image(fd: int) -> Any:
        status = fstat(fd)
        names = ("st_mode", "st_uid", "st_dev", "st_ino", "st_size", "st_mtime_ns")
        return SimpleNamespace(**{name: getattr(status, name) for name in names}, st_ctime_ns=10**18)

    with LocalFile.open(path) as file:
        assert index_cache.key_of(file)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstat", of_an_image)
            assert index_cache.key_of(file) is None


def test_files_of_file_systems_that_keep_no_times_are_not_cached(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_cache, "keeps_times", lambda fd: False)
    path = path_of(tmp_path, "file", RECORDS)
    assert [counted.load(path)[1] for _ in range(2)] == [1, 1]
    assert not cache.exists()


def test_a_change_through_a_page_that_was_dirty_at_the_scan_is_noticed(
    tmp_path: Path, cache: Path, counted: Counted
) -> None:
    """The kernel sets the times when a page becomes dirty, and not again until the page has been written."""
    path = path_of(tmp_path, "file", of_file([8] * COUNT))
    with path.open("r+b") as file:
        if not file_systems.keeps_times(file.fileno()):
            pytest.skip("a file system that sets no times here")
        with mmap.mmap(file.fileno(), 0) as memory:
            memory[0] = 8
            time.sleep(0.01)  # the clock of a file system may be this coarse
            assert counted.load(path, ofrecord)[1] == 1
            memory[COUNT // 2 * 16] = 8 + 16  # joins two records
            index, scans = counted.load(path, ofrecord)
    assert (len(index), scans) == (COUNT - 1, 1)


def test_who_verifies_converts_or_blesses_a_file_scans_it(
    tmp_path: Path, cache: Path, counted: Counted, capsys: pytest.CaptureFixture[str]
) -> None:
    path = path_of(tmp_path, "part-0", PARTS)
    counted.load(path, ofrecord)
    for command in (["verify"], ["verify", "--keep"], ["convert", "--to", "ofrecord"]):
        before = counted.scans
        target = [] if command[0] == "verify" else [str(tmp_path / "part-1")]
        assert run([*command, str(path), *target]) == 0
        assert counted.scans > before, command
    assert counted.load(path, ofrecord)[1] == 0, "what was found is kept"


# ---------------------------------------------------------------- unusable folders


def test_off_is_off(tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    monkeypatch.setenv("FFFS_CACHE", "off")
    assert counted.load(path) == (EXPECTED, 1)
    entry_of(cache).unlink()
    counted.load(path)
    assert list(cache.iterdir()) == []


def test_links_are_not_followed(tmp_path: Path, cache: Path, counted: Counted) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    entry = entry_of(cache)
    moved = tmp_path / "moved"
    os.rename(entry, moved)
    entry.symlink_to(moved)
    before = moved.read_bytes()
    assert counted.load(path) == (EXPECTED, 1)
    assert not entry.is_symlink()  # replaced; its target is unchanged
    assert moved.read_bytes() == before


def test_a_folder_that_is_a_link_is_not_used(tmp_path: Path, cache: Path, counted: Counted) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    cache.parent.mkdir()
    cache.symlink_to(elsewhere)
    assert [counted.load(path_of(tmp_path, "file", RECORDS))[1] for _ in range(2)] == [1, 1]
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("mode", [0o777, 0o720, 0o702])
def test_what_others_may_write_to_is_not_believed(tmp_path: Path, cache: Path, counted: Counted, mode: int) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    entry = entry_of(cache)
    entry.chmod(mode & 0o666)
    assert counted.load(path) == (EXPECTED, 1)
    cache.chmod(mode)
    assert counted.load(path) == (EXPECTED, 1)
    cache.chmod(0o700)
    assert counted.load(path) == (EXPECTED, 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_others_own_is_not_believed(tmp_path: Path, cache: Path, counted: Counted) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    os.chown(entry_of(cache), 65534, 65534)
    assert counted.load(path) == (EXPECTED, 1)
    os.chown(cache, 65534, 65534)
    assert [counted.load(path)[1] for _ in range(2)] == [1, 1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("made", ["home", "home/cache"])
def test_nothing_is_made_in_the_home_of_another_user(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    (tmp_path / made).mkdir(parents=True)
    for folder in (tmp_path / "home", tmp_path / made):
        os.chown(folder, 65534, 65534)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home" / "cache"))
    path = path_of(tmp_path, "file", RECORDS)
    assert [counted.load(path)[1] for _ in range(2)] == [1, 1]
    assert os.listdir(tmp_path / made) == []


@pytest.mark.parametrize("blocked", ["file", "fifo", "folder"])
def test_something_else_in_the_place_of_an_entry_is_no_error(
    tmp_path: Path, cache: Path, counted: Counted, blocked: str
) -> None:
    path = path_of(tmp_path, "file", RECORDS)
    counted.load(path)
    entry = entry_of(cache)
    entry.unlink()
    {"file": lambda: entry.write_bytes(b"x"), "fifo": lambda: os.mkfifo(entry), "folder": entry.mkdir}[blocked]()
    assert counted.load(path) == (EXPECTED, 1)
    assert [name for name in os.listdir(cache) if name.startswith(".")] == []


@pytest.mark.parametrize("home", ["relative", "", "/dev/null/cache", "/proc/1/nothing\0"[:-1]])
def test_a_home_that_cannot_be_used_is_no_error(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    monkeypatch.setenv("HOME", "/dev/null")
    monkeypatch.setenv("XDG_CACHE_HOME", home)
    path = path_of(tmp_path, "file", RECORDS)
    assert [counted.load(path)[1] for _ in range(2)] == [1, 1]
    assert not Path("relative").exists()


def test_a_home_that_may_not_be_written_to_is_no_error(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LocalFile.open(path_of(tmp_path, "file", RECORDS))
    home = tmp_path / "home"
    home.mkdir()
    # The parent folder may not be accessible for everyone.
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self/cwd")
    try:
        with as_nobody(home):
            for mode, entries in ((0o500, []), (0o700, ["fffs"])):
                os.chmod(".", mode)
                assert [models.table(tfrecord.load_index(file)) == EXPECTED for _ in range(2)] == [True, True]
                assert os.listdir(".") == entries
            assert counted.scans == 3
    finally:
        file.close()


def test_a_full_disk_is_no_error(tmp_path: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_cache, "SETTLED", -1.0)
    monkeypatch.setattr(index_cache, "keeps_times", lambda fd: True)
    path = path_of(tmp_path, "file", RECORDS)
    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        with contextlib.suppress(OSError):
            (disk / "filler").write_bytes(bytes(64 << 10))
        assert counted.load(path) == (EXPECTED, 1)
        assert [name for _, _, names in os.walk(disk) for name in names] in ([], ["filler"])


def test_what_was_made_first_goes_when_there_is_too_much(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    for k in range(5):
        path = tmp_path / f"{k}.tfrecord"
        path.write_bytes(RECORDS)
        counted.load(path)
        newest = max(cache.iterdir(), key=lambda entry: entry.stat().st_mtime_ns)
        os.utime(newest, (1000 + k, 1000 + k))
        sizes.append(newest.stat().st_size)
        monkeypatch.setattr(index_cache, "LIMIT", 3 * sizes[0])
        assert len(list(cache.iterdir())) <= 4
    assert [counted.load(tmp_path / f"{k}.tfrecord")[1] for k in (4, 3, 2)] == [0, 0, 0]
    assert counted.load(tmp_path / "0.tfrecord")[1] == 1


def test_all_entries_are_looked_at_a_few_times_only(
    tmp_path: Path, cache: Path, counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, opening a data set of 100,000 shards would take hours."""
    looks: list[int] = []
    monkeypatch.setattr(index_cache, "_kept", itertools.count(1))
    monkeypatch.setattr(index_cache, "_prune", looks.append)
    for k in range(40):
        counted.load(path_of(tmp_path, f"{k}.tfrecord", RECORDS))
    assert len(looks) == 6


def test_what_killed_processes_have_left_is_removed_and_nothing_else(
    tmp_path: Path, cache: Path, counted: Counted
) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(RECORDS)
    cache.mkdir(parents=True, mode=0o700)
    for name in (".scan-1-2-3.abc", ".scan-1-2-3.young", "somebody's", ".hidden"):
        (cache / name).write_bytes(b"")
        os.utime(cache / name, (1000, 1000))
    os.utime(cache / ".scan-1-2-3.young")
    assert counted.load(path)[1] == 1
    assert {entry.name for entry in cache.iterdir()} >= {".scan-1-2-3.young", "somebody's", ".hidden"}
    assert not (cache / ".scan-1-2-3.abc").exists()
    assert counted.load(path)[1] == 0


def test_a_file_whose_time_an_entry_cannot_have_is_not_cached(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    path.write_bytes(RECORDS)
    with LocalFile.open(path) as file:
        assert index_cache.key_of(file)
    os.utime(path, (13_569_465_600, 13_569_465_600))  # the year 2400
    with LocalFile.open(path) as file:
        assert index_cache.key_of(file) is None
