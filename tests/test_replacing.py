"""Files that are replaced while other processes read, write, check or create them."""

from __future__ import annotations

import copy
import errno
import fcntl
import os
import pickle
import re
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import as_nobody, bound
from inside import AtomicFile, LocalFile, Sources, atomic, dump, formats_sources, keep_checksums, pair

import fffs
from fffs import granular
from fffs.errors import SourceChangedError, SourceNotFoundError, UsageError, WriteError, WriterError

OLD = [b"old%03d" % k for k in range(20)]
NEW = [b"new and longer %03d" % k for k in range(30)]


def bag_of(path: Path, records: list[bytes], layout: str = "v3") -> Path:
    """Write a Bag by a conversion, which replaces an existing one."""
    source = path.with_name(f"source{len(records)}.ffr")
    with fffs.FileWriter(source, len(records)) as writer:
        for record in records:
            writer.write_one(record)
    fffs.convert(source, path, layout=layout, force=True)
    return path


def records_of(path: Path) -> list[bytes]:
    with fffs.open(path) as reader:
        return [bytes(record) for record in reader.read(range(reader.n))]


def before(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, act: Callable[[], object], at: int = 1) -> None:
    """Call ``act`` once, before the at-th call of a method."""
    real, calls = getattr(owner, name), 0

    def method(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            act()
        return real(*args, **options)

    monkeypatch.setattr(owner, name, method)


# ---------------------------------------------------------------- pairs of files


@pytest.mark.parametrize("old", ["v1", "v3"])
def test_a_bag_that_is_replaced_while_it_is_opened_is_the_old_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str
) -> None:
    path = bag_of(tmp_path / "x.bag", OLD, old)
    (tmp_path / "x.idx").unlink(missing_ok=True)
    if old == "v3":
        bag_of(path, OLD)
    before(monkeypatch, LocalFile, "open_beside", lambda: bag_of(path, NEW))
    assert records_of(path) == NEW


@pytest.mark.parametrize("back", ["before the second look", "after it"])
def test_a_bag_whose_files_are_away_for_a_moment_is_no_bag_of_another_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, back: str
) -> None:
    """The last bytes of its records look like a table of layout v2."""
    records = [b"data", (4).to_bytes(8, "little")]
    path, table = bag_of(tmp_path / "x.bag", records), tmp_path / "x.idx"
    away = tmp_path / "away"
    away.mkdir()

    def take() -> None:
        for file in (path, table):
            file.rename(away / file.name)

    def bring_back() -> None:
        for file in (table, path):
            (away / file.name).rename(file)

    before(monkeypatch, LocalFile, "open_beside", take)
    if back == "before the second look":
        before(monkeypatch, LocalFile, "open_beside", bring_back, at=2)
        assert records_of(path) == records
    else:
        with pytest.raises(SourceNotFoundError):
            records_of(path)


def test_two_writers_of_one_pair_never_mix_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bag_of(tmp_path / "x.bag", [b"first"])
    bag_of(tmp_path / "y.bag", NEW)
    other = threading.Thread(
        target=fffs.convert, args=(tmp_path / "source30.ffr", path), kwargs={"layout": "v3", "force": True}
    )

    def begin() -> None:
        other.start()
        other.join(0.5)
        assert other.is_alive(), "it must wait"

    source = bag_of(tmp_path / "z.bag", OLD)
    before(monkeypatch, AtomicFile, "commit", begin)
    fffs.convert(source, path, layout="v3", force=True)
    monkeypatch.undo()
    other.join()
    assert records_of(path) == NEW


def test_a_name_that_another_process_keeps_locked_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bag_of(tmp_path / "x.bag", OLD)
    monkeypatch.setattr(pair, "PATIENCE", 0.0)
    with pair.only_writer(str(path)):
        with pytest.raises(WriteError, match=r"x.bag: cannot write .another process is putting a file in place"):
            fffs.convert(bag_of_ffr(tmp_path), path, layout="v3", force=True)
        assert records_of(bag_of(tmp_path / "other.bag", NEW)) == NEW
    assert records_of(path) == OLD
    assert not [name for name in os.listdir(tmp_path) if name.endswith("-tmp")]


def test_an_appender_waits_for_a_replacement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = bag_of(tmp_path / "x.bag", OLD), []
    appender = threading.Thread(target=lambda: opened.append(granular.BagWriter(path, layout="v3")))

    def begin() -> None:
        assert not path.exists()
        appender.start()
        appender.join(0.3)
        assert appender.is_alive(), "it must wait"

    before(monkeypatch, AtomicFile, "commit", begin, at=2)
    bag_of(path, NEW)
    appender.join()
    opened[0].append(b"appended")
    opened[0].close()
    assert records_of(path) == [*NEW, b"appended"]


def test_a_file_in_place_does_not_look_as_if_it_were_appended_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer still syncs the folder, which may take seconds; another writer may begin to replace the file."""
    path, looked = tmp_path / "x.bag", []

    def look() -> None:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        looked.append(path.read_bytes())

    before(monkeypatch, atomic, "sync_place", look, at=2)
    bag_of(path, NEW, "v1")
    assert looked == [path.read_bytes()]


def test_looking_for_leftovers_leaves_the_lock_of_a_living_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is used again: removing it by name could remove that of the next writer."""
    monkeypatch.setattr(pair, "PATIENCE", 0.0)
    path, name = tmp_path / "x.bag", tmp_path / ".x.bag.000000000000.fffs-tmp"
    with pair.only_writer(str(path)):
        AtomicFile(path).discard()
        assert name.exists()
        waiting = os.open(name, os.O_RDWR)
    assert not name.exists()
    fcntl.flock(waiting, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert os.fstat(waiting).st_size == 1, "it shows that this is the lock of nobody any more"
    with pair.only_writer(str(path)):
        pass
    os.close(waiting)
    name.touch()
    AtomicFile(path).discard()
    assert name.exists(), "another writer may be about to lock it"


@pytest.mark.parametrize("at", ["before", "after"])
def test_an_interrupt_while_a_name_is_locked_leaves_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    monkeypatch.setattr(pair, "PATIENCE", 0.0)
    path, real = str(tmp_path / "x.bag"), pair.lock

    def interrupted(fd: int, how: int) -> bool:
        if at == "after":
            real(fd, how)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pair, "lock", interrupted)
        with pytest.raises(KeyboardInterrupt), pair.only_writer(path):
            pass
    with pair.only_writer(path):
        pass
    assert os.listdir(tmp_path) == []


def test_an_interrupt_while_the_file_of_a_lock_is_created_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(fd: int) -> int:
        """Interrupts open(2) after it has made the file, before its descriptor is known."""
        monkeypatch.undo()
        os.close(fd)
        raise KeyboardInterrupt

    monkeypatch.setattr(pair, "above_standard", interrupted)
    with pytest.raises(KeyboardInterrupt), pair.only_writer(str(tmp_path / "x.bag")):
        pass
    assert os.listdir(tmp_path) == []


def test_an_interrupt_leaves_the_lock_of_another_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_fd: int) -> int:
        monkeypatch.undo()
        raise KeyboardInterrupt

    path = str(tmp_path / "x.bag")
    with pair.only_writer(path):
        monkeypatch.setattr(pair, "above_standard", interrupted)
        with pytest.raises(KeyboardInterrupt), pair.only_writer(path):
            pass
        assert len(os.listdir(tmp_path)) == 1


def test_a_lock_that_a_killed_writer_left_is_taken_and_removed(tmp_path: Path) -> None:
    path = bag_of(tmp_path / "x.bag", OLD)
    (tmp_path / ".x.bag.000000000000.fffs-tmp").touch()
    assert records_of(bag_of(path, NEW)) == NEW
    assert not [name for name in os.listdir(tmp_path) if name.endswith("-tmp")]


def test_a_lock_of_the_folder_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "PATIENCE", 0.0)
    fd = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert records_of(bag_of(tmp_path / "x.bag", NEW)) == NEW
    os.close(fd)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), WriteError(errno.ENOSPC, "injected")])
def test_a_file_that_another_program_made_meanwhile_is_not_replaced_by_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    path, source = bag_of(tmp_path / "x.bag", OLD), bag_of_ffr(tmp_path)
    old = path.read_bytes()

    def fail() -> None:
        path.write_bytes(b"theirs")
        raise error

    before(monkeypatch, AtomicFile, "commit", fail, at=2)
    with pytest.raises(WriteError, match=r"the old content is now in .*x\.bag\.[0-9a-f]{6}\.old"):
        fffs.convert(source, path, layout="v3", force=True)
    assert path.read_bytes() == b"theirs"
    (kept,) = tmp_path.glob("x.bag.*.old")
    assert kept.read_bytes() == old


def bag_of_ffr(tmp_path: Path) -> Path:
    with fffs.FileWriter(tmp_path / "new.ffr", len(NEW)) as writer:
        for record in NEW:
            writer.write_one(record)
    return tmp_path / "new.ffr"


def test_old_files_that_cannot_get_their_names_back_are_kept_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, source = bag_of(tmp_path / "x.bag", OLD), bag_of_ffr(tmp_path)
    content = path.read_bytes()
    before(monkeypatch, AtomicFile, "commit", path.mkdir, at=2)
    with pytest.raises(WriteError, match=r"the old content is now in .*x\.bag\.[0-9a-f]{6}\.old") as raised:
        fffs.convert(source, path, layout="v3", force=True)
    monkeypatch.undo()
    path.rmdir()
    (kept,) = tmp_path.glob("x.bag.*.old")
    assert str(kept) in str(raised.value)
    assert kept.read_bytes() == content
    kept.rename(path)
    assert records_of(path) == OLD


def test_what_others_put_under_a_name_in_the_meantime_is_not_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, source = tmp_path / "x.bag", bag_of_ffr(tmp_path)
    before(monkeypatch, AtomicFile, "commit", lambda: path.write_bytes(b"theirs"), at=2)
    with pytest.raises(WriteError, match="another process made it meanwhile"):
        fffs.convert(source, path, layout="v3")
    assert path.read_bytes() == b"theirs"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["new.ffr", "x.bag"]


# ---------------------------------------------------------------- without --force


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("name", ["out.ffr", "out.tfrecord", "part-0", "out.bag"])
def test_a_file_that_appears_during_a_conversion_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, links: bool
) -> None:
    source, target = bag_of_ffr(tmp_path), tmp_path / name

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    if not links:
        monkeypatch.setattr(os, "link", refuse)
    before(monkeypatch, Sources, "refuse_changed", lambda: target.write_bytes(b"theirs"))
    with pytest.raises(WriteError, match="another process made it meanwhile"):
        fffs.convert(source, target)
    assert target.read_bytes() == b"theirs"
    target.unlink()
    fffs.convert(source, target)
    assert records_of(target) == NEW
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted(["new.ffr", name])


def test_neither_a_pack_nor_an_archive_replaces_what_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a").write_bytes(b"a")
    subprocess.run(["tar", "-cf", tmp_path / "folder.tar", "-C", tmp_path / "folder", "."], check=True)
    target = tmp_path / "x.ffr"
    for source in ("folder", "folder.tar"):
        with monkeypatch.context() as patched:
            before(patched, AtomicFile, "commit", lambda: target.write_bytes(b"theirs"))
            with pytest.raises(WriteError, match="another process made it meanwhile"):
                fffs.convert(tmp_path / source, target)
        assert target.read_bytes() == b"theirs"
        target.unlink()


# ---------------------------------------------------------------- what cannot be replaced


@pytest.mark.parametrize("through", ["itself", "link"])
def test_a_fifo_is_not_replaced(tmp_path: Path, through: str) -> None:
    fifo, link = tmp_path / "fifo.ffr", tmp_path / "link.ffr"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    target = fifo if through == "itself" else link
    for write in (
        lambda: fffs.FileWriter(target, 1),
        lambda: fffs.pack_folder(tmp_path, target),
        lambda: fffs.convert(bag_of_ffr(tmp_path), target, force=True),
    ):
        with pytest.raises(UsageError, match="a device, FIFO or socket"):
            write()
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert link.is_symlink()


def test_a_link_into_proc_is_not_replaced(tmp_path: Path) -> None:
    source, link, chain = bag_of_ffr(tmp_path), tmp_path / "link.ffr", tmp_path / "chain.ffr"
    with (tmp_path / "output").open("wb") as output:
        link.symlink_to(f"/proc/self/fd/{output.fileno()}")  # as /dev/stdout, with the output in a regular file
        chain.symlink_to("link.ffr")
        for target in (link, chain, Path("/dev/fffs-test.ffr")):
            for force in (False, True):
                with pytest.raises(UsageError, match="in /dev, or a link into /proc"):
                    fffs.convert(source, target, force=force)
            with pytest.raises(UsageError, match="in /dev, or a link into /proc"):
                fffs.FileWriter(target, 1)
    assert link.is_symlink()
    assert chain.is_symlink()
    assert not os.path.lexists("/dev/fffs-test.ffr")


def test_a_folder_that_cannot_be_replaced_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, here, seen = bag_of_ffr(tmp_path), tmp_path / "here", []
    here.mkdir()

    class Items(list[bytes]):
        def __getitem__(self, k: Any) -> Any:
            seen.append(k)
            return super().__getitem__(k)

    def check(target: str | Path) -> None:
        before = sorted(os.listdir(tmp_path))
        for write in (
            lambda: granular.DatasetWriter(target, {"x": "bytes"}),
            lambda: fffs.convert(source, target, to="granular"),
            lambda: fffs.convert(source, target, to="tfrecord", parts=2),
            lambda: dump(Items([b"a", b"b"]), target, 2),
            lambda: fffs.unpack(source, target),
        ):
            with pytest.raises(UsageError, match="cannot replace a mount point or the current folder"):
                write()
        assert (seen, sorted(os.listdir(tmp_path))) == ([], before)

    monkeypatch.chdir(here)
    for name in (".", "./", "../here"):
        check(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with bound(tmp_path / "empty", here):
        check(here)
        check("here/.")


def test_a_link_to_a_folder_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.ffr").symlink_to("folder")
    for write in (
        lambda: fffs.FileWriter(tmp_path / "link.ffr", 1),
        lambda: fffs.pack_folder(tmp_path / "folder", tmp_path / "link.ffr"),
    ):
        with pytest.raises(WriteError, match="Is a directory"):
            write()
    assert (tmp_path / "link.ffr").is_symlink()


def test_a_dot_at_the_end_of_a_name_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    with granular.DatasetWriter(f"{tmp_path}/new/.", {"x": "bytes"}) as writer:
        writer.append({"x": b"content"})
    assert "x.bag" in os.listdir(tmp_path / "new")


def test_a_file_that_is_a_mount_point_is_refused_before_any_work(tmp_path: Path) -> None:
    source, target = bag_of_ffr(tmp_path), tmp_path / "target.ffr"
    for path in (target, tmp_path / "other"):
        path.write_bytes(b"old")
    with bound(tmp_path / "other", target):
        for write in (
            lambda: fffs.FileWriter(target, 1),
            lambda: fffs.pack_folder(tmp_path, target),
            lambda: fffs.convert(source, target, force=True),
        ):
            with pytest.raises(UsageError, match="a mount point"):
                write()
    assert target.read_bytes() == b"old"


def test_a_target_below_a_link_to_another_file_system_is_replaced(tmp_path: Path) -> None:
    source = bag_of_ffr(tmp_path)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        (tmp_path / "out").symlink_to(folder)
        for _ in range(2):
            fffs.convert(source, tmp_path / "out" / "x.ffr", force=True)
        with granular.DatasetWriter(tmp_path / "out" / "set", {"k": "bytes"}) as writer:
            writer.append({"k": b"record"})
        (tmp_path / "out" / "empty").mkdir()
        with granular.DatasetWriter(tmp_path / "out" / "empty", {"k": "bytes"}) as writer:
            writer.append({"k": b"record"})


# ---------------------------------------------------------------- checksums


def replaced(path: Path) -> None:
    """Replace a file by a copy, as a program does that takes no locks."""
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


def test_checksums_of_a_file_that_is_replaced_meanwhile_are_not_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bag_of(tmp_path / "x.bag", OLD, "v1")
    for at in (1, 2):  # before the sidecar is in place, and after
        before(monkeypatch, LocalFile, "is_named", lambda: replaced(path), at=at + 2)
        with pytest.raises(SourceChangedError, match="while its checksums were computed"):
            keep_checksums(path)
        monkeypatch.undo()
        assert not (tmp_path / "x.bag.fffs-crc").exists()


def test_a_file_that_is_not_replaced_keeps_its_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bag_of(tmp_path / "x.bag", OLD, "v1")
    source = bag_of_ffr(tmp_path)
    keep_checksums(path)
    kept = (tmp_path / "x.bag.fffs-crc").read_bytes()
    real = os.rename

    def rename(old: Any, new: Any, **folders: Any) -> None:
        if new == b"x.bag":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(old, new, **folders)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(WriteError):
        fffs.convert(source, path, force=True)
    monkeypatch.undo()
    assert (tmp_path / "x.bag.fffs-crc").read_bytes() == kept
    assert records_of(path) == OLD
    fffs.convert(source, path, force=True)
    assert not (tmp_path / "x.bag.fffs-crc").exists()
    assert records_of(path) == NEW


# ---------------------------------------------------------------- the working folder


@pytest.mark.parametrize(
    "command", [["mount", "x.ffr", "m"], ["umount", "m"], ["pack", ".", "x.ffr"], ["stat", "m"]], ids=lambda c: c[0]
)
def test_a_working_folder_that_was_removed_is_named(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "gone").mkdir()
    code = "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); from fffs.cli.program import run; "
    code += "sys.exit(run(sys.argv[2:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "gone", *command], capture_output=True, text=True, check=False
    )
    assert done.returncode in (2, 3, 6, 7)
    assert re.fullmatch(r"fffs: [^\n]*(working folder|No such file)[^\n]*\n", done.stderr)


def test_checksums_of_the_old_file_that_come_at_the_last_moment_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, source = tmp_path / "part-0", bag_of_ffr(tmp_path)
    fffs.convert(source, path, to="ofrecord")
    before(monkeypatch, AtomicFile, "_take_name", lambda: keep_checksums(path))
    fffs.convert(source, path, to="ofrecord", force=True)
    assert not (tmp_path / "part-0.fffs-crc").exists()


def test_checksums_of_a_bag_wait_for_its_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bag_of(tmp_path / "x.bag", OLD)

    def keep() -> None:
        with pytest.raises(SourceChangedError):
            keep_checksums(path)

    keeper = threading.Thread(target=keep)

    def begin() -> None:
        keeper.start()
        keeper.join(0.3)
        assert keeper.is_alive(), "it must wait"

    before(monkeypatch, pair, "_replace", begin)
    bag_of(path, [record.upper() for record in OLD])
    keeper.join()
    assert not (tmp_path / "x.bag.fffs-crc").exists()
    assert records_of(path) == [record.upper() for record in OLD]


@pytest.mark.parametrize("length", [240, 247, 255])
def test_long_names_have_no_checksums_beside_them(tmp_path: Path, length: int) -> None:
    for ending, layout in ((".ffr", None), (".bag", "v1"), (".bag", "v3")):
        path = tmp_path / (f"{layout}".ljust(length - len(ending), "x") + ending)
        if ending == ".ffr":
            with fffs.FileWriter(path, 1) as writer:
                writer.write_one(b"record")
        else:
            bag_of_long(tmp_path, path, layout)
        assert records_of(path) == [b"record"]


def bag_of_long(folder: Path, path: Path, layout: str | None) -> None:
    with fffs.FileWriter(folder / "short.ffr", 1) as writer:
        writer.write_one(b"record")
    for force in (False, True):
        fffs.convert(folder / "short.ffr", path, layout=layout, force=force)


@pytest.mark.parametrize("at", ["before", "after"])
def test_an_interrupt_at_a_rename_touches_no_folder_that_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    path, real = bag_of(tmp_path / "x.bag", OLD, "v1"), AtomicFile._take_name
    keep_checksums(path)
    source = bag_of_ffr(tmp_path)

    def interrupted(file: AtomicFile) -> None:
        if at == "after":
            real(file)
        raise KeyboardInterrupt

    def unlink(name: Any, *, dir_fd: int) -> None:
        os.fstat(dir_fd)
        real_unlink(name, dir_fd=dir_fd)

    real_unlink = os.unlink
    monkeypatch.setattr(os, "unlink", unlink)
    monkeypatch.setattr(AtomicFile, "_take_name", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fffs.convert(source, path, layout="v1", force=True)
    assert records_of(path) == (NEW if at == "after" else OLD)
    assert (tmp_path / "x.bag.fffs-crc").exists() == (at == "before")
    assert not [name for name in os.listdir(tmp_path) if name.endswith("-tmp")]


@pytest.mark.parametrize("layout", ["v1", "v3"])
@pytest.mark.parametrize("kept", [True, False])
def test_a_bag_that_is_replaced_before_its_checksums_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, kept: bool
) -> None:
    path = bag_of(tmp_path / "x.bag", OLD, layout)
    keep_checksums(path)

    def replace() -> None:
        bag_of(path, [record.upper() for record in OLD], layout)
        if kept:
            keep_checksums(path)

    before(monkeypatch, formats_sources, "with_checksums", replace)
    with fffs.open(path) as reader:
        assert [bytes(record) for record in reader.read(range(reader.n))] == [record.upper() for record in OLD]
        assert (reader.index().checksums is not None) == kept


def test_a_killed_replacement_leaves_the_old_files_to_its_user(tmp_path: Path) -> None:
    path, source = bag_of(tmp_path / "x.bag", OLD), bag_of_ffr(tmp_path)
    table = (tmp_path / "x.idx").read_bytes()
    code = (
        "import os, sys, fffs\n"
        "from fffs.files.atomic import AtomicFile\n"
        "real, calls = AtomicFile.commit, []\n"
        "def commit(file):\n"
        "    calls.append(1)\n"
        "    os._exit(9) if len(calls) == 2 else real(file)\n"
        "AtomicFile.commit = commit\n"
        "fffs.convert(sys.argv[1], sys.argv[2], layout='v3', force=True)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, source, path], check=False).returncode == 9
    assert not path.exists()
    assert records_of(bag_of(path, NEW)) == NEW
    (old,), (old_table,) = tmp_path.glob("x.bag.*.old"), tmp_path.glob("x.idx.*.old")
    old_table.rename(tmp_path / "y.idx")
    old.rename(tmp_path / "y.bag")
    assert (tmp_path / "y.idx").read_bytes() == table
    assert records_of(tmp_path / "y.bag") == OLD


# ---------------------------------------------------------------- children of fork


def sleeping_child() -> int:
    if (child := os.fork()) == 0:
        signal.pause()
        os._exit(0)
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_child_that_was_forked_meanwhile_keeps_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "PATIENCE", 0.0)
    children: list[int] = []
    before(monkeypatch, AtomicFile, "commit", lambda: children.append(sleeping_child()), at=2)
    try:
        path = bag_of(tmp_path / "x.bag", OLD)
        assert len(children) == 1
        assert records_of(bag_of(path, NEW)) == NEW
        writer = granular.BagWriter(path, layout="v3")
        children.append(sleeping_child())
        writer.append(b"appended")
        writer.close()
        granular.BagWriter(path, layout="v3").close()
    finally:
        for child in children:
            end(child)
    assert records_of(path) == [*NEW, b"appended"]


def test_a_child_keeps_no_lock_of_a_parent_that_is_killed(tmp_path: Path) -> None:
    program = f"""
        import os, signal, sys, time
        import fffs
        from fffs import granular
        os.chdir({str(tmp_path)!r})
        bag = granular.BagWriter("x.bag", layout="v3")
        bag.append(b"first", flush=True)
        file = fffs.FileWriter("x.ffr", 1)
        file.write_one(b"first")
        again = file.reread()
        folder = granular.DatasetWriter("set", {{"x": "bytes"}})
        if (child := os.fork()) == 0:
            os.write(1, b"%d\\n" % os.getpid())
            time.sleep(600)
        time.sleep(600)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.stdout.close()
    process.kill()
    process.wait()
    try:
        granular.BagWriter(tmp_path / "x.bag", layout="v3").close()
        fffs.FileWriter(tmp_path / "x.ffr", 1).discard()
        granular.DatasetWriter(tmp_path / "set", {"x": "bytes"}).discard()
        assert sorted(os.listdir(tmp_path)) == ["x.bag", "x.idx"]
        assert Path(f"/proc/{child}").exists()
    finally:
        os.kill(child, signal.SIGKILL)
    assert records_of(tmp_path / "x.bag") == [b"first"]


@pytest.mark.parametrize("kept", ["x.bag.fffs-crc", "x.idx", "x.bag"])
def test_an_old_file_that_cannot_be_removed_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    path = bag_of(tmp_path / "x.bag", OLD)
    keep_checksums(path)
    inode, real = (tmp_path / kept).stat().st_ino, os.unlink

    def unlink(name: Any, *, dir_fd: int | None = None) -> None:
        if os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_ino == inode:
            raise OSError(errno.EIO, "injected")
        real(name, dir_fd=dir_fd)

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", unlink)
        bag_of(path, NEW)
    assert records_of(path) == NEW
    (left,) = [name for name in os.listdir(tmp_path) if name.endswith(("-tmp", ".old"))]
    assert (tmp_path / left).stat().st_ino == inode
    assert left.endswith("-tmp") == (kept == "x.bag.fffs-crc"), "the next writer removes nothing but checksums"
    assert records_of(bag_of(path, OLD)) == OLD
    assert not [name for name in os.listdir(tmp_path) if name.endswith("-tmp")]


@pytest.mark.parametrize("spare", [0, 10])
def test_a_child_keeps_the_numbers_of_locks_in_use(tmp_path: Path, spare: int) -> None:
    """The child's copies of the writers will close them. Some Pythons have no memfd_create."""
    program = f"""
        import os, resource, sys
        del os.memfd_create
        import fffs
        from fffs import granular
        from fffs.files import temporary
        os.chdir({str(tmp_path)!r})
        writers = [fffs.FileWriter("x.ffr", 1), granular.BagWriter("x.bag", layout="v3")]
        writers.append(granular.DatasetWriter("set", {{"x": "bytes"}}))
        locked = sorted(temporary._locked)
        limit = max(locked) + 1 + {spare}
        while os.open("/", os.O_RDONLY) < limit:  # numbers up to there are not free
            pass
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        def refused(*_, **__):
            raise OSError(23, "Too many open files in system")
        os.open = refused
        if (child := os.fork()) == 0:
            links = [os.readlink(f"/proc/self/fd/{{fd}}") for fd in locked]
            os._exit(0 if links == ["/"] * len(locked) and len(locked) >= 3 and not temporary._locked else 1)
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("closing", ["", "os.closerange(3, 1000)"])
def test_a_child_of_a_child_keeps_the_numbers_of_locks_in_use(tmp_path: Path, closing: str) -> None:
    """The first child may have closed all descriptors, as a daemon does."""
    program = f"""
        import os, sys
        import fffs
        from fffs.files import temporary
        os.chdir({str(tmp_path)!r})
        first = fffs.FileWriter("x.ffr", 1)
        def fork(run):
            if (child := os.fork()) == 0:
                os._exit(run())
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        def links():
            return [os.readlink(f"/proc/self/fd/{{fd}}") for fd in locked] != ["/"]
        def work():
            {closing}
            global locked
            second = fffs.FileWriter("y.ffr", 1)
            locked = list(temporary._locked)
            return fork(links)
        sys.exit(fork(work))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_writers_cannot_be_copied(tmp_path: Path, copied: Callable[[object], object]) -> None:
    """A copy would discard what the writer has written, and close its files."""
    writers = [
        fffs.FileWriter(tmp_path / "x.ffr", 1),
        granular.BagWriter(tmp_path / "x.bag", layout="v3"),
        granular.DatasetWriter(tmp_path / "set", {"x": "bytes"}),
        granular.ShardedDatasetWriter(tmp_path / "shards", {"x": "bytes"}),
    ]
    for writer in writers:
        with pytest.raises(TypeError, match=f"cannot copy or pickle a {type(writer).__name__}"):
            copied(writer)
        writer.discard()


def test_a_child_publishes_no_empty_shard(tmp_path: Path) -> None:
    writer = granular.ShardedDatasetWriter(tmp_path / "shards", {"x": "bytes"})
    if (child := os.fork()) == 0:
        try:
            writer.close()
        except WriterError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    writer.append({"x": b"row"})
    writer.close()
    assert len(granular.ShardedDatasetReader(tmp_path / "shards")) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of two users")
def test_what_the_sticky_bit_protects_is_refused_before_any_work(tmp_path: Path) -> None:
    sticky = tmp_path / "ours" / "sticky"
    (sticky / "set").mkdir(parents=True)
    (sticky / "x.ffr").touch()
    (sticky / "link.ffr").symlink_to("x.ffr")
    for path in (sticky, sticky / "set", sticky / "x.ffr"):
        path.chmod(0o1777)

    def write(name: str) -> None:
        with fffs.FileWriter(f"sticky/{name}.ffr", 1) as writer:
            writer.write_one(b"record")

    with as_nobody(tmp_path / "ours"):
        for name in ("x", "link"):
            with pytest.raises(WriteError, match="another user's, in a folder with the sticky bit"):
                fffs.FileWriter(f"sticky/{name}.ffr", 1)
        with pytest.raises(WriteError, match="another user's, in a folder with the sticky bit"):
            granular.DatasetWriter("sticky/set", {"x": "bytes"})
        write("own")
        write("own")
        Path("sticky/empty").mkdir()
        granular.DatasetWriter("sticky/empty", {"x": "bytes"}).close()
