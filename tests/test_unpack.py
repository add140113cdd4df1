"""Unpacking: never outside the target, all or nothing, and nothing that was not requested."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import MIB, Pack, as_nobody, contents, differences, once, record_file, small_disk, snapshot, stretched
from golden_files import GOLDEN, sha256
from inside import NewFile, RecordStore, load_source, sync

import fffs
from fffs.errors import (
    ChecksumError,
    FormatError,
    MetadataError,
    ReadError,
    SourceNotFoundError,
    TruncatedError,
    UsageError,
    WriteError,
)


def unpack(pack: Path, target: str | bytes | Path, **options: Any) -> list[str]:
    """Unpack a file. Returns the warnings."""
    warnings: list[str] = []
    fffs.unpack(pack, target, warn=warnings.append, **options)
    return warnings


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A packed folder, alone in a folder of its own."""
    folder = tmp_path / "source"
    (folder / "sub" / "empty").mkdir(parents=True)
    (folder / "file").write_bytes(b"content")
    (folder / "sub" / "other").write_bytes(b"more content")
    (folder / "sub" / "link").symlink_to("../file")
    (tmp_path / "room").mkdir()
    fffs.pack_folder(folder, tmp_path / "room" / "pack.ffr")
    return tmp_path / "room" / "pack.ffr"


def change(pack: Path, edit: Callable[[Pack], object]) -> None:
    """Rewrite a pack with right checksums."""
    parts = Pack.parse(pack.read_bytes())
    edit(parts)
    pack.write_bytes(parts.build())


# ---------------------------------------------------------------- nothing outside the target


def rename(pack: Pack, old: bytes, new: bytes) -> None:
    """Give an entry another name of the same length that keeps the order of the names."""
    assert pack.trailer
    assert len(old) == len(new)
    names = pack.trailer.arrays["names"].tobytes()
    assert names.count(old) == 1
    pack.trailer.arrays["names"] = np.frombuffer(names.replace(old, new), np.uint8)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("file", "../x"),
        ("file", "/tmp"),
        ("file", "a/bc"),
        ("file", "abc/"),
        ("link", ".."),
        ("other", "sub/x"),
        ("file", "a\0bc"),
    ],
)
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, old: str, new: str) -> None:
    folder = tmp_path / "f"
    (folder / "sub").mkdir(parents=True)
    name = "xx" if new == ".." else "".join("x" if c in "./\0" else c for c in new)
    (folder / "sub" / name).write_bytes(b"content")
    fffs.pack_folder(folder, tmp_path / "pack.ffr")
    change(tmp_path / "pack.ffr", lambda parts: rename(parts, name.encode(), new.encode()))
    with pytest.raises(MetadataError, match="the tree is damaged: a name"):
        unpack(tmp_path / "pack.ffr", tmp_path / "target" / "deep")
    assert sorted(os.listdir(tmp_path)) == ["f", "pack.ffr"]


def test_a_file_below_a_symbolic_link_is_refused(pack: Path) -> None:
    """The entry 'sub' remains a folder with files, but the type of its node becomes a link."""

    def turn_into_link(parts: Pack) -> None:
        assert parts.trailer
        mode = parts.trailer.arrays["mode"]
        folders = [node for node in range(1, len(mode)) if stat.S_ISDIR(int(mode[node]))]
        mode[folders[0]] = stat.S_IFLNK | 0o777
        parts.trailer.arrays["ref"][folders[0]] = 0
        parts.trailer.arrays["count"][folders[0]] = 2

    change(pack, turn_into_link)
    with pytest.raises(MetadataError):
        unpack(pack, pack.parent / "target")
    assert os.listdir(pack.parent) == ["pack.ffr"]


def test_links_that_point_outside_are_made_and_nothing_is_written_through_them(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    (outside / "file").write_bytes(b"precious")
    folder = tmp_path / "f"
    (folder / "sub").mkdir(parents=True)
    for name, target in [("a", outside), ("b", outside / "file"), ("c", Path("../outside/file")), ("sub/d", outside)]:
        (folder / name).symlink_to(target)
        os.link(folder / name, folder / f"{name}-again", follow_symlinks=False)
    (folder / "e").write_bytes(b"harmless")
    (folder / "sub").chmod(0o777)
    before = snapshot(outside)
    fffs.pack_folder(folder, tmp_path / "pack.ffr")
    unpack(tmp_path / "pack.ffr", tmp_path / "target")
    assert differences(snapshot(tmp_path / "target"), snapshot(folder)) == {}
    assert snapshot(outside) == before


def test_a_target_that_is_a_link_to_an_empty_folder_fills_that_folder(pack: Path) -> None:
    (pack.parent / "real").mkdir()
    (pack.parent / "target").symlink_to("real")
    unpack(pack, pack.parent / "target")
    assert (pack.parent / "target").is_symlink()
    assert (pack.parent / "real" / "file").read_bytes() == b"content"
    assert sorted(os.listdir(pack.parent)) == ["pack.ffr", "real", "target"]


# ---------------------------------------------------------------- the target


@pytest.mark.parametrize("path", ["target", "target/", b"target//", "./target", "new/../target", "r\u00f6m \udcff\n"])
def test_a_new_target_is_made_however_it_is_named(
    pack: Path, monkeypatch: pytest.MonkeyPatch, path: str | bytes
) -> None:
    monkeypatch.chdir(pack.parent)
    (pack.parent / "new").mkdir()
    unpack(pack, path)
    name = os.fsencode(path).rstrip(b"/").rpartition(b"/")[2]
    assert sorted(os.listdir(os.fsencode(pack.parent))) == sorted([b"new", b"pack.ffr", name])
    assert contents(pack.parent / os.fsdecode(name)).keys() == contents(pack.parent.parent / "source").keys()


def test_an_empty_folder_is_filled(pack: Path) -> None:
    (pack.parent / "target").mkdir(mode=0o711)
    unpack(pack, pack.parent / "target")
    (pack.parent.parent / "source").chmod(0o711)  # it gets no further permissions
    assert differences(snapshot(pack.parent / "target"), snapshot(pack.parent.parent / "source")) == {}


@pytest.mark.parametrize("kind", ["file", "folder with a file", "dangling link", "link to a file"])
def test_what_is_there_already_is_left_alone(pack: Path, kind: str) -> None:
    target = pack.parent / "target"
    if kind == "folder with a file":
        target.mkdir()
        (target / "mine").write_bytes(b"mine")
    elif kind == "file":
        target.write_bytes(b"mine")
    else:
        (pack.parent / "mine").write_bytes(b"mine")
        target.symlink_to("mine" if kind == "link to a file" else "nowhere")
    before = snapshot(pack.parent)
    with pytest.raises(UsageError, match="target: already exists"):
        unpack(pack, target)
    assert snapshot(pack.parent) == before


def test_the_current_folder_is_refused_because_it_would_be_replaced(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pack.parent / "here").mkdir()
    monkeypatch.chdir(pack.parent / "here")
    for name in (".", "./", "../here", str(pack.parent / "here")):
        with pytest.raises(UsageError, match="current folder"):
            unpack(pack, name)
    assert os.listdir(".") == []
    assert sorted(os.listdir("..")) == ["here", "pack.ffr"]


def test_a_mount_point_is_refused_before_anything_is_written(pack: Path) -> None:
    with small_disk(pack.parent / "disk", MIB) as disk:
        with pytest.raises(UsageError, match="mount point"):
            unpack(pack, disk)
        unpack(pack, disk / "in-it")
        assert (disk / "in-it" / "file").read_bytes() == b"content"


def test_a_target_in_no_folder_is_an_error_that_names_it(pack: Path) -> None:
    with pytest.raises(
        WriteError, match=r"nowhere/target: cannot write \(there is no folder .*/nowhere; make it first\): No such"
    ):
        unpack(pack, pack.parent / "nowhere" / "target")


def test_a_target_without_a_name_is_refused(pack: Path) -> None:
    with pytest.raises(UsageError, match="is empty"):
        unpack(pack, "")


def test_a_target_where_nothing_may_be_written_is_an_error_that_names_it(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = tmp_path / "closed"
    room.mkdir()
    with load_source([pack]) as source, as_nobody(room):
        os.chmod(".", 0o555)
        with pytest.raises(WriteError, match="target: cannot write: Permission denied"):
            fffs.unpack(source, "target")


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "f" / "sub").mkdir(parents=True)
    (tmp_path / "f" / "sub" / "large").write_bytes(stretched(3 * MIB))
    fffs.pack_folder(tmp_path / "f", tmp_path / "pack.ffr")
    with small_disk(tmp_path / "disk", MIB) as disk:
        with pytest.raises(WriteError, match="disk/target/sub/large: cannot write: No space left") as caught:
            unpack(tmp_path / "pack.ffr", disk / "target")
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(disk) == []


# ---------------------------------------------------------------- all or nothing


@pytest.mark.parametrize("jobs", [1, 2, 7])
def test_any_number_of_jobs_gives_the_same_folder(tmp_path: Path, jobs: int) -> None:
    (tmp_path / "f").mkdir()
    for i in range(300):
        (tmp_path / "f" / f"{i}").write_bytes(b"%d" % i)
    (tmp_path / "f" / "large").write_bytes(stretched(17 * MIB + 1))
    fffs.pack_folder(tmp_path / "f", tmp_path / "pack.ffr")
    seen: list[tuple[int, int]] = []
    unpack(tmp_path / "pack.ffr", tmp_path / "copy", jobs=jobs, progress=lambda *at: seen.append(at))
    assert differences(snapshot(tmp_path / "copy"), snapshot(tmp_path / "f")) == {}
    total = 17 * MIB + 1 + 10 + 180 + 600
    assert max(seen) == (total, total)
    assert len([done for done, _ in seen if 800 < done < total]) >= 1, "there is progress inside a large file"


def test_the_target_is_there_only_when_it_is_complete(pack: Path) -> None:
    seen: list[bool] = []
    unpack(pack, pack.parent / "target", progress=lambda *_: seen.append((pack.parent / "target").exists()))
    assert seen == [False, False]


def test_others_cannot_look_into_a_target_that_is_not_complete(pack: Path) -> None:
    seen: list[int] = []

    def look(*_: int) -> None:
        (temporary,) = [entry for entry in os.scandir(pack.parent) if entry.name.endswith(".fffs-tmp")]
        seen.append(stat.S_IMODE(temporary.stat().st_mode))

    unpack(pack, pack.parent / "target", progress=look)
    assert set(seen) == {0o700}


@pytest.mark.parametrize("jobs", [1, 4])
@pytest.mark.parametrize("size", [12, 3 * MIB + 1, 20 * MIB])
def test_a_damaged_record_is_an_error_and_leaves_nothing(tmp_path: Path, jobs: int, size: int) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "a").write_bytes(b"good")
    (tmp_path / "f" / "victim").write_bytes(stretched(size))
    fffs.pack_folder(tmp_path / "f", tmp_path / "pack.ffr")
    data = bytearray((tmp_path / "pack.ffr").read_bytes())
    data[12 + 12 * 3 + 4 + size - 1] ^= 1
    (tmp_path / "pack.ffr").write_bytes(data)
    with pytest.raises(ChecksumError, match=r"pack\.ffr: record 1.* \(file 'victim'\)$"):
        unpack(tmp_path / "pack.ffr", tmp_path / "target", jobs=jobs)
    assert sorted(os.listdir(tmp_path)) == ["f", "pack.ffr"]


def test_a_record_behind_a_cut_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "plain.ffr").write_bytes(record_file([b"first", b"second", b"third"])[:-6])
    with pytest.raises(TruncatedError, match="record 1"):
        unpack(tmp_path / "plain.ffr", tmp_path / "target")
    assert os.listdir(tmp_path) == ["plain.ffr"]


@pytest.mark.parametrize("jobs", [1, 4])
def test_what_is_bad_is_left_out_with_all_its_names_when_asked_for(tmp_path: Path, jobs: int) -> None:
    folder = tmp_path / "f"
    (folder / "sub").mkdir(parents=True)
    for number in range(200):
        (folder / f"{number:03}").write_bytes(stretched(1000 + number))
    (folder / "victim").write_bytes(b"a file that will be bad")
    os.link(folder / "victim", folder / "sub" / "other name")
    os.link(folder / "007", folder / "sub" / "good name")
    fffs.pack_folder(folder, tmp_path / "pack.ffr")
    data = (tmp_path / "pack.ffr").read_bytes()
    (tmp_path / "pack.ffr").write_bytes(data.replace(b"a file that will be bad", b"a file that is not good"))

    left_out: dict[str, Exception] = {}
    unpack(tmp_path / "pack.ffr", tmp_path / "target", jobs=jobs, leave_out=left_out.__setitem__)
    names = [folder / "victim", folder / "sub" / "other name"]
    assert sorted(left_out) == sorted(str(tmp_path / "target" / name.relative_to(folder)) for name in names)
    assert all(isinstance(error, ChecksumError) for error in left_out.values())
    times = (folder / "sub").stat()
    for name in names:
        name.unlink()
    for changed in (folder, folder / "sub"):
        os.utime(changed, ns=(times.st_mtime_ns, times.st_mtime_ns))
        os.utime(tmp_path / "target" / changed.relative_to(folder), ns=(times.st_mtime_ns, times.st_mtime_ns))
    assert differences(snapshot(tmp_path / "target"), snapshot(folder)) == {}


def test_what_is_behind_a_cut_is_left_out_too(tmp_path: Path) -> None:
    (tmp_path / "plain.ffr").write_bytes(record_file([b"first", b"second", b"third"])[:-6])
    left_out: list[str] = []
    unpack(tmp_path / "plain.ffr", tmp_path / "target", leave_out=lambda path, _: left_out.append(path))
    assert left_out == [str(tmp_path / "target" / name) for name in ("000001", "000002")]
    assert contents(tmp_path / "target") == {b"000000": b"first"}


def test_what_cannot_be_read_is_an_error_that_names_it_or_left_out(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = RecordStore.copy_to

    def fail(store: RecordStore, record: int, target: NewFile, *rest: Any) -> None:
        os.write(target.fd, b"half")
        if record == 1:
            raise ReadError(errno.EIO, str(pack), "record 1")
        copy(store, record, target, *rest)

    monkeypatch.setattr(RecordStore, "read_span", lambda *_: None)  # as if a record of each run could not be read
    monkeypatch.setattr(RecordStore, "copy_to", fail)
    with pytest.raises(ReadError, match=r"pack\.ffr: cannot read \(record 1, 'sub/other'\): Input/output error$"):
        unpack(pack, pack.parent / "target")
    assert os.listdir(pack.parent) == ["pack.ffr"]
    left_out: list[str] = []
    unpack(pack, pack.parent / "target", leave_out=lambda path, _: left_out.append(path))
    assert left_out == [str(pack.parent / "target/sub/other")]
    assert sorted(contents(pack.parent / "target")) == [b"file", b"sub", b"sub/empty", b"sub/link"]


def test_an_interrupt_leaves_nothing(pack: Path) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    for jobs in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            unpack(pack, pack.parent / "target", jobs=jobs, progress=once(interrupt))
        assert os.listdir(pack.parent) == ["pack.ffr"]


def test_a_failure_after_folders_were_made_read_only_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "f"
    (folder / "closed" / "sub").mkdir(parents=True)
    (folder / "closed" / "file").touch()
    (folder / "closed" / "sub").chmod(0)
    (folder / "closed").chmod(0o555)
    folder.chmod(0o555)
    fffs.pack_folder(folder, tmp_path / "pack.ffr")
    (tmp_path / "room").mkdir()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with load_source([tmp_path / "pack.ffr"]) as source, as_nobody(tmp_path / "room"):
        with (
            monkeypatch.context() as patch,
            pytest.raises(WriteError, match="target: cannot write: Input/output error"),
        ):
            patch.setattr(os, "rename", fail)
            fffs.unpack(source, "target")
    assert os.listdir(tmp_path / "room") == []


# ---------------------------------------------------------------- leftovers

LEFTOVER = ".target.0123456789ab.fffs-tmp"


def test_the_leftovers_of_a_killed_process_are_removed_by_the_next(pack: Path) -> None:
    code = """
        import os, signal, sys, fffs
        fffs.unpack(sys.argv[1], sys.argv[2], progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(pack), str(pack.parent / "target")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    (left,) = [name for name in os.listdir(pack.parent) if name.endswith(".fffs-tmp")]
    assert sorted(os.listdir(pack.parent)) == sorted([left, "pack.ffr"])
    unpack(pack, pack.parent / "target")
    assert sorted(os.listdir(pack.parent)) == ["pack.ffr", "target"]


def test_the_temporary_folder_of_a_living_process_is_left_alone(pack: Path) -> None:
    (pack.parent / LEFTOVER).mkdir()
    (pack.parent / LEFTOVER / "file").touch()
    living = os.open(pack.parent / LEFTOVER, os.O_RDONLY)
    try:
        fcntl.flock(living, fcntl.LOCK_EX)
        unpack(pack, pack.parent / "target")
    finally:
        os.close(living)
    assert (pack.parent / LEFTOVER / "file").exists()


def test_what_only_looks_like_a_leftover_is_left_alone(pack: Path) -> None:
    outside = pack.parent / "outside"
    outside.mkdir()
    (outside / "mine").touch()
    (pack.parent / LEFTOVER).symlink_to(outside)
    (pack.parent / ".target.notes.fffs-tmp").mkdir()
    unpack(pack, pack.parent / "target")
    assert (outside / "mine").exists()
    assert (pack.parent / ".target.notes.fffs-tmp").exists()


def test_of_two_that_unpack_into_one_target_one_wins_and_nothing_is_left(pack: Path) -> None:
    with pytest.raises(WriteError, match="target: cannot write: Directory not empty"):
        unpack(pack, pack.parent / "target", progress=once(lambda: unpack(pack, pack.parent / "target")))
    assert sorted(os.listdir(pack.parent)) == ["pack.ffr", "target"]
    assert differences(snapshot(pack.parent / "target"), snapshot(pack.parent.parent / "source")) == {}


# ---------------------------------------------------------------- what is restored


@pytest.fixture
def special(tmp_path: Path) -> Iterator[Path]:
    """A pack with set-user-ID and set-group-ID files and folders."""
    folder = tmp_path / "f"
    folder.mkdir()
    for name, mode in {"suid": 0o4755, "sgid": 0o2755, "both": 0o6755, "plain": 0o755, "sticky": 0o1644}.items():
        (folder / name).touch()
        (folder / name).chmod(mode)
    (folder / "again").hardlink_to(folder / "suid")
    (folder / "folder").mkdir()
    (folder / "folder").chmod(0o3775)
    fffs.pack_folder(folder, tmp_path / "pack.ffr")
    yield tmp_path / "pack.ffr"
    shutil.rmtree(folder)


def modes_in(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def test_special_bits_of_files_are_left_out_with_one_warning(special: Path) -> None:
    warnings = unpack(special, special.parent / "target")
    modes = modes_in(special.parent / "target")
    assert {name: modes[name] for name in ("suid", "again", "sgid", "both")} == dict.fromkeys(
        ("suid", "again", "sgid", "both"), 0o755
    )
    # The sticky bit of folders stays, because it only removes rights.
    assert (modes["plain"], modes["sticky"], modes["folder"]) == (0o755, 0o644, 0o1775)
    assert len(warnings) == 1
    assert warnings[0].startswith("3 files and 1 folder unpacked without set-user-ID")


def test_special_bits_are_restored_when_asked_for(special: Path) -> None:
    assert unpack(special, special.parent / "target", special_bits=True) == []
    assert modes_in(special.parent / "target") == modes_in(special.parent / "f")


def test_the_umask_changes_nothing(pack: Path) -> None:
    before = os.umask(0o777)
    try:
        unpack(pack, pack.parent / "target")
    finally:
        os.umask(before)
    assert differences(snapshot(pack.parent / "target"), snapshot(pack.parent.parent / "source")) == {}


def test_folders_that_may_not_be_entered_are_restored_with_what_is_in_them(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    (folder / "a" / "b" / "c").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_bytes(b"x")
    for path in (folder / "a" / "b" / "c", folder / "a" / "b", folder / "a", folder):
        path.chmod(0)
    fffs.pack_folder(folder, tmp_path / "pack.ffr")
    (tmp_path / "room").mkdir()
    with load_source([tmp_path / "pack.ffr"]) as source, as_nobody(tmp_path / "room"):
        fffs.unpack(source, "target")
    assert differences(snapshot(tmp_path / "room" / "target"), snapshot(folder)) == {}


@pytest.mark.parametrize("name", GOLDEN.of_kind("packed"))
def test_what_ffrecord_packed_unpacks_with_the_usual_modes(tmp_path: Path, name: str) -> None:
    unpack(GOLDEN.path(name), tmp_path / "target")
    found = snapshot(tmp_path / "target")
    listed = {os.fsencode(entry["path"]): entry for entry in GOLDEN.files[name]["tree"]}
    assert found.keys() - {b""} == listed.keys()
    for path, (mode, _, content, names) in found.items():
        if path and content is not None:
            assert (mode, sha256(content), names) == ("0o100644", listed[path]["sha256"], (path,))
        else:
            assert mode == "0o40755"


def test_a_plain_record_file_unpacks_to_numbered_files(tmp_path: Path) -> None:
    (tmp_path / "plain.ffr").write_bytes(record_file([b"zero", b"", b"two"]))
    unpack(tmp_path / "plain.ffr", tmp_path / "target")
    assert contents(tmp_path / "target") == {b"000000": b"zero", b"000001": b"", b"000002": b"two"}


def test_a_tree_that_gives_one_record_to_two_files_unpacks_to_two_files(pack: Path) -> None:
    """No packer writes such a tree, but each of its files has valid content."""

    def share(parts: Pack) -> None:
        assert parts.trailer
        refs, mode = parts.trailer.arrays["ref"], parts.trailer.arrays["mode"]
        for node in range(len(mode)):
            if stat.S_ISREG(int(mode[node])):
                refs[node] = len(parts.records) - 1

    change(pack, share)
    unpack(pack, pack.parent / "target")
    found = snapshot(pack.parent / "target")
    assert found[b"file"][2:] == (b"more content", (b"file",))
    assert found[b"sub/other"][2:] == (b"more content", (b"sub/other",))


def test_a_file_that_cannot_be_opened_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "bad.ffr").write_bytes(b"\xff" * 100)
    for name, error in (("bad.ffr", FormatError), ("none.ffr", SourceNotFoundError)):
        with pytest.raises(error, match=name):
            fffs.unpack(tmp_path / name, tmp_path / "target")
    assert os.listdir(tmp_path) == ["bad.ffr"]


@pytest.mark.parametrize("here", [True, False])
def test_each_file_is_synced_before_the_folder_appears_where_one_call_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """On FUSE and network file systems, syncfs(2) does not wait for the server."""
    for name in ("a", "sub/b", "sub/c/d"):
        (tmp_path / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / name).write_bytes(name.encode())
    os.symlink("a", tmp_path / "f" / "link")
    fffs.pack_folder(tmp_path / "f", tmp_path / "f.ffr")
    synced = []

    def record(fd: int, real: Any = os.fsync) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        synced.append(path if (tmp_path / "new").exists() else re.sub(r"/\.new\.[^/]*", "/new", path))
        real(fd)

    monkeypatch.setattr(os, "fsync", record)
    monkeypatch.setattr(sync, "is_of_this_machine", lambda fd: here)
    fffs.unpack(tmp_path / "f.ffr", tmp_path / "new")
    each = ["", "/a", "/sub", "/sub/b", "/sub/c", "/sub/c/d"]
    once = [f"{tmp_path}/new", str(tmp_path)]
    assert sorted(synced) == sorted(once if here else [*once, *(f"{tmp_path}/new{name}" for name in each)])
    assert synced[-1] == str(tmp_path)
