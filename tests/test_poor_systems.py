"""Writers and readers on systems without some feature: locks, links, descriptors, /proc."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from builders import differences, snapshot, split_records
from engine_model import FOREVER, fault
from inside import AtomicFile, UnlockedWarning, dump, index_cache, lib, open_folder, unpack
from mounting import pack_files
from strange_disk import strange_disk

import fffs
from fffs.errors import ChecksumError, ReadError, SourceChangedError, WorkerError, WriteError
from fffs.granular import BagReader, BagWriter
from fffs.ofrecord import OFRecordWriter

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide /proc")
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


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL])
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


@pytest.mark.fuse
@pytest.mark.parametrize(("one", "other"), [("d/name", "d/NAME"), ("d/x", "D/y")])
def test_names_that_the_file_system_takes_for_one_are_named(one: str, other: str, tmp_path: Path) -> None:
    pack = pack_files(tmp_path / "from", **{one: b"1", other: b"2"})
    (tmp_path / "disk").mkdir()
    with strange_disk("caseless", tmp_path / "disk", tmp_path / "caseless") as disk:
        with pytest.raises(WriteError, match=r"caseless/t/d(/name)?: cannot write \(its file system takes it for an"):
            unpack(pack, disk / "t")
        assert not os.listdir(disk)


@pytest.mark.fuse
def test_nothing_is_left_where_a_descriptor_lists_what_there_was_when_it_was_opened(tmp_path: Path) -> None:
    pack = pack_files(tmp_path / "from", **{"a": b"1", "d/f": b"a record that is damaged"})
    pack.write_bytes(pack.read_bytes().replace(b"damaged", b"d4maged"))
    (tmp_path / "disk").mkdir()
    with strange_disk("listed", tmp_path / "disk", tmp_path / "listed") as disk:
        with pytest.raises(ChecksumError):
            unpack(pack, disk / "t")
        assert not os.listdir(disk)


@pytest.mark.fuse
def test_files_are_synced_where_a_descriptor_lists_what_there_was_when_it_was_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = pack_files(tmp_path / "from", **{"a": b"1", "d/f": b"2"})
    synced = set()

    def record(fd: int, real: Callable[[int], None] = os.fsync) -> None:
        synced.add(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        real(fd)

    monkeypatch.setattr(os, "fsync", record)
    (tmp_path / "disk").mkdir()
    with strange_disk("listed", tmp_path / "disk", tmp_path / "listed") as disk:
        unpack(pack, disk / "t")
    assert {"a", "d", "f"} <= synced


def test_the_folder_of_an_owner_that_cannot_be_known_keeps_its_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder may be complete and about to be renamed."""
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
    """On NFS, locks of folders are local to a machine: another one may unpack to the same target."""
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


# ---------------------------------------------------------------- meaningless inode numbers


@pytest.fixture(params=["changing", "equal"])
def strange(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A disk with such numbers: three different files with equal attributes, two more names of the last, and a link."""
    folder = tmp_path / "under"
    (folder / "sub").mkdir(parents=True)
    for name, content in (("a", b"first"), ("b", b"other"), ("sub/c", b"third")):
        (folder / name).write_bytes(content)
    for name in ("d", "sub/d"):
        (folder / name).hardlink_to(folder / "sub" / "c")
    for name, target in (("link", "a"), ("other", "b")):
        (folder / name).symlink_to(target)
    for path in (folder / "sub", folder, *(path for path in folder.rglob("*") if not path.is_dir())):
        os.utime(path, ns=(5, 5), follow_symlinks=False)
    with strange_disk(request.param, folder, tmp_path / "strange") as disk:
        yield disk


def contents(folder: Path) -> dict[bytes, object]:
    return {path: entry[:3] for path, entry in snapshot(folder).items()}


@pytest.mark.fuse
def test_no_file_is_lost_and_none_seems_to_change_where_inode_numbers_mean_nothing(
    strange: Path, tmp_path: Path
) -> None:
    summary = fffs.pack_folder(strange, tmp_path / "p.ffr")
    unpack(tmp_path / "p.ffr", tmp_path / "target")
    assert contents(tmp_path / "target") == contents(tmp_path / "under")
    assert summary.files in (3, 5), "where all have one number, names of one file are found by what is in it"
    assert (summary.files == 3) == (len({path.stat().st_ino for path in strange.iterdir()}) == 1)


@pytest.mark.fuse
def test_everything_can_be_written_where_inode_numbers_mean_nothing(strange: Path, tmp_path: Path) -> None:
    before = contents(tmp_path / "under")
    for _ in range(2):
        fffs.pack_folder(strange, strange / "p.ffr")  # which does not pack itself
    unpack(strange / "p.ffr", strange / "sub" / "target")
    written = contents(tmp_path / "under" / "sub" / "target")
    assert differences({**written, b"": ()}, {**before, b"": ()}) == {}
    write(strange / "w.ffr")
    fffs.convert(strange / "w.ffr", strange / "w.tfrecord", verify=True)
    assert not list((tmp_path / "under").rglob("*.fffs-tmp"))


@pytest.mark.fuse
@pytest.mark.parametrize("change", ["written to", "replaced", "exchanged for a link"])
def test_what_changes_is_noticed_also_where_inode_numbers_mean_nothing(
    change: str, strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").write_bytes(b"OTHER")
    os.utime(tmp_path / "outside", ns=(5, 5))

    def do() -> None:
        if change == "written to":
            (strange / "b").write_bytes(b"OTHER")
            return
        (strange / "b").unlink()
        if change == "replaced":
            (strange / "b").write_bytes(b"OTHER")
        else:
            (strange / "b").symlink_to(tmp_path / "outside")

    original, todo = os.open, [do]

    def act_and_open(path: Any, *arguments: Any, **options: Any) -> int:
        if b".fffs-tmp" in os.fsencode(path) and todo:  # after the scan, before the first file is copied
            todo.pop()()
        return original(path, *arguments, **options)

    monkeypatch.setattr(os, "open", act_and_open)
    with pytest.raises(SourceChangedError, match="strange/b: changed while the folder was packed"):
        fffs.pack_folder(strange, tmp_path / "p.ffr", jobs=1)
    assert not todo
    assert not (tmp_path / "p.ffr").exists()


def test_a_file_that_is_longer_than_its_size_is_not_packed(tmp_path: Path) -> None:
    """In /proc, all sizes are 0."""
    with pytest.raises(
        ReadError, match=r"/proc/sys/kernel/random/\w+: cannot read \(it has more bytes than its size says"
    ):
        fffs.pack_folder("/proc/sys/kernel/random", tmp_path / "p.ffr")
    assert os.listdir(tmp_path) == []
    with open("/proc/version", "rb") as file:
        assert lib.fffs_ends_at(file.fileno(), 0) == -errno.EOVERFLOW
        assert lib.fffs_ends_at(file.fileno(), len(file.read())) == 0
    assert lib.fffs_ends_at(-1, 0) == -errno.EBADF


@pytest.mark.fuse
def test_a_bag_is_replaced_whole_or_not_at_all_where_inode_numbers_mean_nothing(
    strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "new")
    there = sorted(os.listdir(strange))
    with BagWriter(strange / "x.bag", "v3") as bag:
        bag.append(b"old")

    def commit(file: AtomicFile, real: Callable[[AtomicFile], None] = AtomicFile.commit) -> None:
        if file.path.endswith(".bag"):
            raise KeyboardInterrupt
        real(file)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(AtomicFile, "commit", commit)
        fffs.convert(tmp_path / "w.ffr", strange / "x.bag", layout="v3", force=True, verify=True)
    assert BagReader(strange / "x.bag")[:] == [b"old"]
    fffs.convert(tmp_path / "w.ffr", strange / "x.bag", layout="v3", force=True, verify=True)
    assert BagReader(strange / "x.bag")[:] == RECORDS
    assert sorted(os.listdir(strange)) == sorted([*there, "x.bag", "x.idx"])


@pytest.mark.fuse
def test_an_index_that_was_kept_is_not_taken_for_another_files_where_inode_numbers_mean_nothing(
    strange: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_cache, "SETTLED", -1.0)
    for name, sizes in (("x", (1, 3)), ("y", (3, 1))):
        with OFRecordWriter(tmp_path / "under" / f"{name}.ofrecord") as writer:
            for k in range(2 * index_cache.FEWEST):
                writer.write_one(bytes(sizes[k % 2]))
        os.utime(tmp_path / "under" / f"{name}.ofrecord", ns=(5, 5))
    for name, expected in (("x", 1), ("y", 3), ("x", 1)):
        with fffs.FileReader(strange / f"{name}.ofrecord", format="ofrecord") as reader:
            assert reader.lengths([0])[0] == expected


# ---------------------------------------------------------------- few descriptors, no /proc

LIMITED = ["sh", "-c", 'ulimit -n 16 && exec "$@"', "sh"]
WITHOUT_PROC = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc && exec "$@"', "sh"]
DUMP = """
import sys, fffs.packing.dump
fffs.packing.dump.dump([b"record"] * 4, sys.argv[1], 2)
"""


@pytest.fixture
def workplace(tmp_path: Path) -> Path:
    """A deep folder ``f`` with many files, its pack, an archive of it, and record files."""
    deep = tmp_path / "f" / Path(*(f"d{k}" for k in range(40)))
    deep.mkdir(parents=True)
    for path in (tmp_path / "f", deep):
        for k in range(100):
            (path / f"{k}").write_bytes(b"%d" % k)
    fffs.pack_folder(tmp_path / "f", tmp_path / "p.ffr")
    write(tmp_path / "x")
    fffs.convert(tmp_path / "w.ffr", tmp_path / "r.tfrecord")
    subprocess.run(["tar", "-C", tmp_path / "f", "-cf", tmp_path / "a.tar", "."], check=True)
    return tmp_path


@pytest.mark.parametrize("poor", [LIMITED, pytest.param(WITHOUT_PROC, marks=as_root)], ids=["descriptors", "proc"])
@pytest.mark.parametrize(
    "command",
    [
        ["pack", "-q", "f", "out.ffr"],
        ["unpack", "-q", "p.ffr", "out"],
        ["verify", "-q", "p.ffr"],
        ["convert", "-q", "--verify", "a.tar", "out.ffr"],
        ["convert", "-q", "--verify", "f", "out.ffr"],
        ["convert", "-q", "--verify", "r.tfrecord", "--to", "ffrecord", "--parts", "2", "out"],
        ["convert", "-q", "--verify", "r.tfrecord", "--to", "granular", "out"],
    ],
)
def test_sixteen_descriptors_are_enough_and_proc_is_not_needed(
    poor: list[str], command: list[str], workplace: Path
) -> None:
    run = subprocess.run(
        [*poor, sys.executable, "-m", "fffs", *command], cwd=workplace, capture_output=True, check=False, text=True
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert not list(workplace.glob(".*"))
    for made in workplace.glob("out*"):
        assert made.stat().st_mode & 0o777 == (0o777 if made.is_dir() else 0o666) & ~umask()


@pytest.mark.parametrize(("form", "count"), [("tfrecord", 100), ("granular", 50), ("granular --layout v3", 100)])
def test_many_parts_need_a_high_limit_of_descriptors_before_anything_is_written(
    tmp_path: Path, form: str, count: int
) -> None:
    with fffs.FileWriter(tmp_path / "x.ffr", 100) as writer:
        for k in range(100):
            writer.write_one(b"%d" % k)

    def run(limit: str, *args: str) -> tuple[int, str]:
        command = ["sh", "-c", f'ulimit {limit} 64 && exec "$@"', "sh", sys.executable, "-m", "fffs", *args]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False, text=True)
        return done.returncode, done.stderr

    parts = ["convert", "-q", "x.ffr", "out", "--to", *form.split(), "--parts", str(count)]
    code, line = run("-n", *parts, "--verify")
    assert (code, line.count("\n"), os.listdir(tmp_path)) == (2, 1, ["x.ffr"])
    assert f"out: {count} parts cannot be compared" in line
    assert "(ulimit -n)" in line
    assert run("-n", *parts) == (0, "")
    code, line = run("-n", "verify", "-q", "out")
    assert (code, line.count("\n"), "Too many open files" in line, "ulimit -n" in line) == (6, 1, True, True)
    assert run("-Sn", "verify", "-q", "out") == (0, "")  # a command raises the soft limit itself
    assert run("-Sn", *parts[:3], "again", *parts[4:], "--verify") == (0, "")


def umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


@as_root
def test_parts_are_dumped_without_proc(tmp_path: Path) -> None:
    subprocess.run([*WITHOUT_PROC, sys.executable, "-c", DUMP, tmp_path / "out"], check=True)
    assert sorted(os.listdir(tmp_path / "out")) == ["PART_00000.ffr", "PART_00001.ffr"]


def test_a_dump_that_can_start_no_process_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "fork", too_many)
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    said = r"out/PART_00000\.ffr: items 0 to 1: a worker process cannot be started: Too many open files$"
    with pytest.raises(WorkerError, match=said):
        dump(RECORDS, tmp_path / "out", 2)
    assert os.listdir(tmp_path) == []


def test_a_folder_that_cannot_be_opened_up_without_proc_is_no_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in /proc is missing; the error must not look as if the folder were missing."""

    def missing(*_: object) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    (tmp_path / "closed").mkdir(0)
    original = os.open

    def closed(path: bytes, flags: int, *arguments: int, **options: int) -> int:
        if path == b"closed" and not flags & os.O_PATH:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return original(path, flags, *arguments, **options)

    place = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(os, "open", closed)
    monkeypatch.setattr(os, "chmod", missing)
    try:
        with pytest.raises(PermissionError):
            open_folder(b"closed", place, force=True)
    finally:
        os.close(place)


# ---------------------------------------------------------------- modes and times that cannot be set


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_no_mode_or_time_can_be_set_everything_else_is_written(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    (tmp_path / "f" / "sub").mkdir(parents=True)
    (tmp_path / "f" / "file").write_bytes(b"content")
    (tmp_path / "f" / "sub" / "link").symlink_to("file")
    monkeypatch.setattr(os, "fchmod", refused)
    monkeypatch.setattr(os, "utime", refused)
    fffs.pack_folder(tmp_path / "f", tmp_path / "p.ffr")
    warnings: list[str] = []
    with fault(lib.FFFS_FAULT_ATTRIBUTES, 1, FOREVER, -number):
        unpack(tmp_path / "p.ffr", tmp_path / "target", warn=warnings.append)
    assert warnings == [
        f"{tmp_path / 'target'}: 3 names without mode or time: this file system does not let fffs set them"
    ]
    assert (tmp_path / "target" / "file").read_bytes() == b"content"
    assert os.readlink(tmp_path / "target" / "sub" / "link") == "file"
