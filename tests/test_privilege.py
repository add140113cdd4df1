"""No rights are gained or granted: by a mount, by unpacking, or by users who may write to the folder of a target."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import MIB, Pack, as_nobody, contents, once, small_disk, snapshot
from engine_model import fault, held, wait_until
from inside import LeftoverWarning, lib, load_source, open_folder, remove_content, temporary_files
from inside import parse_options as parse
from mounting import Mounts

import fffs
from fffs.errors import MetadataError, UnsupportedError, UsageError, WriteError
from fffs.granular import DatasetWriter
from fffs.mount import MountOptions

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
fuse = pytest.mark.fuse


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    """A packed folder, alone in a folder of its own."""
    folder = tmp_path / "source"
    (folder / "sub").mkdir(parents=True)
    for name in ("a", "sub/b", "sub/c", "z"):
        (folder / name).write_bytes(name.encode() * 100)
    (tmp_path / "room").mkdir()
    fffs.pack_folder(folder, tmp_path / "room" / "pack.ffr")
    return tmp_path / "room" / "pack.ffr"


def unpack(pack: Path, target: Path, **options: Any) -> None:
    fffs.unpack(pack, target, warn=lambda _: None, **options)


def run_as_nobody(*command: object) -> str:
    arguments = [str(part) for part in command]
    return subprocess.check_output(arguments, user=NOBODY, group=NOBODY, extra_groups=[], text=True, timeout=60)


# ---------------------------------------------------------------- the mount


def mount_options(path: Path) -> tuple[set[str], set[str]]:
    """Return the options of a mount, and those of its file system."""
    for line in os.fsdecode(Path("/proc/thread-self/mountinfo").read_bytes()).split("\n")[:-1]:
        fields = line.split(" ")
        if fields[4] == str(path):
            return set(fields[5].split(",")), set(fields[-1].split(","))
    raise AssertionError(f"{path} is not mounted")


@fuse
@pytest.mark.parametrize("option", ["", "exec", "defaults", "atime,strictatime", "nonempty,uid=0"])
def test_every_mount_is_read_only_nosuid_and_nodev(pack: Path, mounts: Mounts, option: str) -> None:
    changed = {name: value for name, value in vars(parse([option])).items() if value != vars(MountOptions())[name]}
    of_mount, of_file_system = mount_options(mounts(pack, **changed))
    assert {"ro", "nosuid", "nodev"} <= of_mount
    assert not {"rw", "suid", "dev"} & of_mount
    assert "default_permissions" in of_file_system
    assert "allow_other" not in of_file_system


@fuse
def test_who_lets_others_in_has_the_kernel_check_permissions(pack: Path, mounts: Mounts) -> None:
    assert {"allow_other", "default_permissions"} <= mount_options(mounts(pack, allow_other=True))[1]


def test_options_that_would_weaken_a_mount_are_refused_by_name() -> None:
    for option in ("suid", "dev", "rw"):
        with pytest.raises(UsageError, match=f"^-o {option}: "):
            parse([f"ro,{option},noexec"])
    assert not parse([]).allow_other


@fuse
@as_root
def test_a_set_user_id_program_in_a_mount_gives_no_rights(tmp_path: Path, shared_folder: Path, mounts: Mounts) -> None:
    program = shutil.which("id")
    assert program
    (shared_folder / "f").mkdir()
    copy = shared_folder / "f" / "id"
    shutil.copy(program, copy)
    copy.chmod(0o6755)
    fffs.pack_folder(shared_folder / "f", tmp_path / "p.ffr")
    path = mounts(tmp_path / "p.ffr", at=shared_folder / "m", allow_other=True)
    assert stat.S_IMODE((path / "id").stat().st_mode) == 0o6755, "it is shown as it was packed"
    assert (run_as_nobody(copy, "-u"), run_as_nobody(copy, "-g")) == ("0\n", "0\n"), "outside it does give them"
    assert (run_as_nobody(path / "id", "-u"), run_as_nobody(path / "id", "-g")) == (f"{NOBODY}\n", f"{NOBODY}\n")


def with_modes(pack: Path, mode_of: Callable[[int], int]) -> None:
    """Rewrite a pack: its nodes get other modes, with right checksums."""
    parts = Pack.parse(pack.read_bytes())
    assert parts.trailer
    modes = parts.trailer.arrays["mode"]
    parts.trailer.arrays["mode"] = np.array([mode_of(int(mode)) for mode in modes], modes.dtype)
    pack.write_bytes(parts.build())


@pytest.mark.parametrize("kind", [stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK, 0, 0o170000])
def test_a_pack_with_a_device_or_another_special_file_is_refused(pack: Path, kind: int) -> None:
    with_modes(pack, lambda mode: kind | 0o666 if stat.S_ISREG(mode) else mode)
    with pytest.raises(MetadataError, match="neither file, directory nor symbolic link"):
        load_source([pack])


# ---------------------------------------------------------------- special bits


def test_no_special_bit_comes_out_of_a_pack_unasked(pack: Path) -> None:
    with_modes(pack, lambda mode: mode | 0o7000)
    unpack(pack, pack.parent / "target")
    found = {path: int(entry[0], 8) for path, entry in snapshot(pack.parent / "target").items()}
    assert len(found) == 6
    for path, mode in found.items():
        # The sticky bit of folders stays, because it only removes rights.
        assert mode & 0o7000 == (stat.S_ISVTX if stat.S_ISDIR(mode) else 0), path


def test_special_bits_are_not_there_before_a_file_is_complete(pack: Path) -> None:
    with_modes(pack, lambda mode: mode | 0o7777)
    with before_a_mode_is_set(lambda: unpack(pack, pack.parent / "target", jobs=1, special_bits=True)):
        path = temporary_of(pack.parent) / "a"
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"a" * 100, 0o600)
    assert stat.S_IMODE((pack.parent / "target" / "a").stat().st_mode) == 0o7777


# ---------------------------------------------------------------- incomplete files


@contextmanager
def before_a_mode_is_set(work: Callable[[], object]) -> Iterator[None]:
    """Run work in a thread, and the block while the first small file has its content and not yet its mode."""
    with ThreadPoolExecutor(1) as pool, fault(lib.FFFS_FAULT_ATTRIBUTES, 1, 1, lib.FFFS_FAULT_HOLD):
        working = pool.submit(work)
        wait_until(lambda: held() == 1 or working.done())
        yield
    working.result()


def temporary_of(folder: Path) -> Path:
    (temporary,) = folder.glob(".*.fffs-tmp")
    return temporary


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077, 0o777])
def test_what_is_not_complete_is_its_users_alone(pack: Path, tmp_path: Path, umask: int) -> None:
    """Also tested as an ordinary user, who may have no access to a file of his own."""
    (tmp_path / "theirs").mkdir()
    seen: list[int] = []

    def look() -> None:
        temporary = temporary_of(Path())
        seen.extend(path.stat().st_mode for path in (temporary, *temporary.rglob("*")))

    with load_source([pack]) as source, as_nobody(tmp_path / "theirs"):
        os.mkdir("f")
        for name in ("1", "2"):
            Path("f", name).write_bytes(b"x" * 9)
        before = os.umask(umask)
        try:
            with before_a_mode_is_set(lambda: fffs.unpack(source, "target", jobs=1)):
                look()
            fffs.pack_folder("f", "out.ffr", jobs=1, progress=once(look))
            with fffs.FileWriter("w.ffr", 1) as writer:
                look()
                writer.write_one(b"record")
        finally:
            os.umask(before)
    assert {stat.S_IFMT(mode) for mode in seen} == {stat.S_IFDIR, stat.S_IFREG}
    assert [oct(mode) for mode in seen if mode & 0o7077] == []
    assert contents(tmp_path / "theirs" / "target") == contents(tmp_path / "source")
    for name in ("out.ffr", "w.ffr"):
        assert stat.S_IMODE((tmp_path / "theirs" / name).stat().st_mode) == 0o666 & ~umask


def test_a_folder_is_opened_to_others_only_when_all_is_on_the_disk(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fchmod, fsync, rename = os.fchmod, os.fsync, os.rename
    top = pack.parent / "target"

    def mode_of_top() -> int:
        return stat.S_IMODE((temporary_of(pack.parent)).stat().st_mode)

    def noting_fchmod(fd: int, mode: int) -> None:
        fchmod(fd, mode)
        steps.append(f"{mode_of_top():o}")

    monkeypatch.setattr(os, "fchmod", noting_fchmod)
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("fsync"), fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda *a, **k: (steps.append("rename"), rename(*a, **k)))
    unpack(pack, top)
    assert steps[-4:] == ["755", "fsync", "rename", "fsync"]
    assert set(steps[:-4]) == {"700"}


# ---------------------------------------------------------------- planted files


@pytest.mark.parametrize("name", ["out.ffr", "target"])
@pytest.mark.parametrize("planted", ["link to a file", "dangling link", "link to a folder", "folder", "file"])
def test_what_is_planted_under_a_predicted_name_is_neither_followed_nor_used(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str, name: str
) -> None:
    victim, path = tmp_path / "victim", pack.parent / f".{name}.0123456789ab.fffs-tmp"
    victim.mkdir()
    (victim / "file").write_bytes(b"precious")
    before = snapshot(victim)
    links = {"link to a file": victim / "file", "dangling link": victim / "new", "link to a folder": victim}
    random = ["0123456789ab", "ba9876543210"]

    def plant_and_give_it_away(_size: int) -> str:
        if len(random) == 2:  # the search for leftovers is over
            if planted in links:
                path.symlink_to(links[planted])
            else:
                path.mkdir() if planted == "folder" else path.write_bytes(b"theirs")
        return random.pop(0)

    monkeypatch.setattr(temporary_files, "random_name", plant_and_give_it_away)
    if name == "target":
        unpack(pack, pack.parent / name)
        assert contents(pack.parent / name) == contents(tmp_path / "source")
    else:
        fffs.pack_folder(tmp_path / "source", pack.parent / name)
        assert (pack.parent / name).read_bytes() == pack.read_bytes()
    assert random == []
    assert path.is_symlink() == (planted in links)
    assert (planted, path.exists()) in {("dangling link", False), (planted, True)}
    assert snapshot(victim) == before


def test_a_link_in_the_place_of_an_output_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "out.ffr").symlink_to("victim")
    with fffs.FileWriter(tmp_path / "out.ffr", 1) as writer:
        writer.write_one(b"record")
    assert not (tmp_path / "out.ffr").is_symlink()
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_a_leftover_full_of_links_is_removed_and_nothing_else(pack: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "sub").mkdir(parents=True)
    (victim / "file").write_bytes(b"precious")
    victim.chmod(0o500)
    leftover = pack.parent / ".target.0123456789ab.fffs-tmp"
    (leftover / "deep").mkdir(parents=True)
    for name in ("folder", "deep/folder"):
        (leftover / name).symlink_to(victim)
    (leftover / "file").symlink_to(victim / "file")
    (leftover / "hard").hardlink_to(victim / "file")
    (leftover / "deep").chmod(0)
    before = {path: entry[:3] for path, entry in snapshot(victim).items()}
    unpack(pack, pack.parent / "target")
    assert not leftover.exists()
    assert {path: entry[:3] for path, entry in snapshot(victim).items()} == before


def make_data_set(_: Path, target: Path) -> None:
    with DatasetWriter(target, {"x": "bytes"}) as writer:
        writer.append({"x": b"record"})


@pytest.mark.parametrize("write", [unpack, make_data_set])
@pytest.mark.parametrize("shared", [0o777, 0o2775, 0o1777])
def test_a_folder_that_others_can_have_renamed_is_not_removed_as_a_leftover(
    pack: Path, write: Callable[[Path, Path], None], shared: int
) -> None:
    pack.parent.chmod(shared)
    renamed, used = (pack.parent / f".target.{digit * 12}.fffs-tmp" for digit in "01")
    for path in (renamed, used):
        (path / "sub").mkdir(parents=True)
        (path / "sub" / "file").write_bytes(b"precious")
    renamed.rename(renamed.with_name(".target.0123456789ab.fffs-tmp"))
    lock = os.open(used, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.warns(LeftoverWarning, match=r"target: .*: \.target\.0123456789ab\.fffs-tmp$"):
            write(pack, pack.parent / "target")
    finally:
        os.close(lock)
    assert [path.read_bytes() for path in sorted(pack.parent.glob(".target*/sub/file"))] == [b"precious"] * 2
    assert os.listdir(pack.parent / "target")


def test_a_folder_that_its_writer_has_locked_keeps_its_mode(pack: Path) -> None:
    pack.parent.chmod(0o777)
    used = Path(".target.0123456789ab.fffs-tmp")
    with as_nobody(pack.parent):
        used.mkdir()
        fd = os.open(used, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            used.chmod(0)
            unpack(Path(pack.name), Path("target"))
        finally:
            os.close(fd)
        assert stat.S_IMODE(used.stat().st_mode) == 0


def test_a_leftover_in_a_folder_of_others_is_removed_if_it_is_marked(pack: Path) -> None:
    """Only temporary folders that are not complete have a mark. That of a copy counts as little as a name."""
    pack.parent.chmod(0o1777)
    code = "import os, sys; from fffs.files.atomic_folder import AtomicFolder\n"
    code += "folder = AtomicFolder(sys.argv[1], 'target'); os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", code, pack.parent / "target"], check=False, timeout=60)
    (left,) = pack.parent.glob(".target.*")
    os.setxattr(pack.parent, "user.fffs.unfinished", os.getxattr(left, "user.fffs.unfinished"))
    subprocess.run(["cp", "-a", left, left.with_name(".target.0123456789ab.fffs-tmp")], check=True)
    with pytest.warns(LeftoverWarning, match=r": \.target\.0123456789ab\.fffs-tmp$"):
        unpack(pack, pack.parent / "target")
    assert [path.name for path in pack.parent.glob(".target.*")] == [".target.0123456789ab.fffs-tmp"]
    assert "user.fffs.unfinished" not in os.listxattr(pack.parent / "target")


def give_to_team(folder: Path, owner: int, mark: str) -> None:
    """Let a user who may write to a folder mark it as its maker would."""
    os.chown(folder, owner, NOBODY)
    folder.chmod(0o775)
    fd, status = os.open(folder, os.O_RDONLY), folder.stat()
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        os.setxattr(fd, mark, b"%d:%d" % (status.st_dev, status.st_ino))
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.close(fd)


@as_root
@pytest.mark.parametrize("owner", [0, NOBODY])
def test_a_folder_that_another_user_may_have_marked_is_not_removed_as_a_leftover(pack: Path, owner: int) -> None:
    pack.parent.chmod(0o777)
    folder = pack.parent / ".target.0123456789ab.fffs-tmp"
    folder.mkdir()
    (folder / "file").write_bytes(b"precious")
    give_to_team(folder, owner, "user.fffs.unfinished")
    with pytest.warns(LeftoverWarning, match=r": \.target\.0123456789ab\.fffs-tmp$"):
        unpack(pack, pack.parent / "target")
    assert (folder / "file").read_bytes() == b"precious"


@as_root
@fuse
@pytest.mark.parametrize("owner", [0, NOBODY])
def test_a_folder_that_another_user_may_have_marked_is_not_removed_with_a_mount(
    pack: Path, mounts: Mounts, owner: int
) -> None:
    folder = pack.parent / "shared"
    folder.mkdir()
    give_to_team(folder, owner, "user.fffs.mountpoint")
    fffs.mount.umount(mounts(pack, at=folder / "sub" / "mount"))
    assert os.listdir(folder) == []


def test_folders_that_look_like_leftovers_are_one_line_of_a_command(pack: Path) -> None:
    pack.parent.chmod(0o777)
    for digit in "12":
        (pack.parent / f".target.{digit * 12}.fffs-tmp").mkdir()
    program = [sys.executable, "-m", "fffs", "unpack", "-q", str(pack), "target"]
    done = subprocess.run(program, cwd=pack.parent, capture_output=True, text=True, check=True, timeout=60)
    (line,) = done.stderr.splitlines()
    assert line.startswith("fffs: warning: target: ") and line.count("-tmp") == 2


def test_another_file_system_in_a_leftover_is_not_emptied(tmp_path: Path) -> None:
    (tmp_path / "left" / "sub").mkdir(parents=True)
    for name in ("file", "sub/file", "sub/z"):
        (tmp_path / "left" / name).touch()
    with small_disk(tmp_path / "left" / "sub" / "disk", 1 << 20) as disk:
        (disk / "folder").mkdir()
        (disk / "folder" / "file").write_bytes(b"precious")
        fd = os.open(tmp_path / "left", os.O_RDONLY)
        remove_content(fd)
        os.close(fd)
        assert [path for path in tmp_path.rglob("*") if path.is_file()] == [disk / "folder" / "file"]


@as_root
def test_a_bind_mount_of_the_same_file_system_in_a_leftover_is_not_emptied(tmp_path: Path) -> None:
    for folder in ("precious", "left/above/mounted", "left/other/empty", "left/mode"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "precious" / "file").write_bytes(b"precious")
    (tmp_path / "precious").chmod(0o755)
    (tmp_path / "left" / "mode" / "file").touch()
    (tmp_path / "left" / "mode").chmod(0)
    mounted = tmp_path / "left" / "above" / "mounted"
    subprocess.run(["mount", "--bind", tmp_path / "precious", mounted], check=True, timeout=60)
    try:
        fd = os.open(tmp_path / "left", os.O_RDONLY)
        remove_content(fd)
        os.close(fd)
    finally:
        subprocess.run(["umount", mounted], check=True, timeout=60)
    assert (tmp_path / "precious" / "file").read_bytes() == b"precious"
    assert stat.S_IMODE((tmp_path / "precious").stat().st_mode) == 0o755
    assert list((tmp_path / "left").rglob("*")) == [mounted.parent, mounted]


def test_a_full_folder_in_the_place_of_the_temporary_one_is_left_alone(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = pack.parent / "results"
    results.mkdir(mode=0o750)
    (results / "file").write_bytes(b"precious")
    mkdir = os.mkdir

    def make_and_exchange(name: bytes, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        mkdir(name, mode, dir_fd=dir_fd)
        if results.exists():
            os.rmdir(name, dir_fd=dir_fd)
            results.rename(pack.parent / os.fsdecode(name))

    monkeypatch.setattr(os, "mkdir", make_and_exchange)
    unpack(pack, pack.parent / "target")
    (exchanged,) = pack.parent.glob(".target.*")
    assert (exchanged / "file").read_bytes() == b"precious"
    assert stat.S_IMODE(exchanged.stat().st_mode) == 0o750


def test_a_folder_that_was_completed_while_it_looked_like_a_leftover_keeps_its_content(
    pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process renames it and releases its lock after it was opened here."""
    leftover, other = pack.parent / ".target.0123456789ab.fffs-tmp", pack.parent / "other"
    leftover.mkdir()
    (leftover / "file").write_bytes(b"complete")
    flock = fcntl.flock

    def complete_and_lock(fd: int, how: int) -> None:
        if leftover.exists():
            leftover.rename(other)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", complete_and_lock)
    unpack(pack, pack.parent / "target")
    assert (other / "file").read_bytes() == b"complete"


# ---------------------------------------------------------------- folders replaced by links


def exchange(folder: Path, outside: Path) -> None:
    folder.rename(folder.with_name(f"{folder.name}-aside"))
    folder.symlink_to(outside)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A folder in which nothing may change."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "file").write_bytes(b"precious")
    path.chmod(0o711)
    os.utime(path, ns=(1, 1))
    return path


@pytest.mark.parametrize("moment", ["before a file", "after all files"])
def test_a_folder_exchanged_for_a_link_while_it_is_unpacked_leads_nowhere(
    pack: Path, outside: Path, moment: str
) -> None:
    before = snapshot(outside)
    wanted = {"before a file": 1, "after all files": 3}[moment]
    calls: list[int] = []

    def progress(*_: int) -> None:
        calls.append(1)
        if len(calls) == wanted:
            exchange(temporary_of(pack.parent) / "sub", outside)

    with pytest.raises(WriteError, match=r"target/sub(/b)?: cannot write: Not a directory"):
        unpack(pack, pack.parent / "target", jobs=1, progress=progress)
    assert snapshot(outside) == before
    assert os.listdir(pack.parent) == ["pack.ffr"]


def test_a_link_in_the_place_of_a_file_that_is_to_be_unpacked_leads_nowhere(pack: Path, outside: Path) -> None:
    before = snapshot(outside)

    def plant() -> None:
        (temporary_of(pack.parent) / "sub" / "b").symlink_to(outside / "file")

    with pytest.raises(WriteError, match="target/sub/b: cannot write: File exists"):
        unpack(pack, pack.parent / "target", jobs=1, progress=once(plant))
    assert snapshot(outside) == before


def test_the_temporary_folder_exchanged_for_a_link_leads_nowhere(pack: Path, outside: Path) -> None:
    before = snapshot(outside)
    unpack(
        pack,
        pack.parent / "target",
        jobs=1,
        progress=once(lambda: exchange(temporary_of(pack.parent), outside)),
    )
    assert snapshot(outside) == before


def test_a_folder_exchanged_for_a_link_when_it_could_not_be_opened_is_not_followed(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mode of a folder is changed in this case; the mode of the link's target must not be."""
    before, original = snapshot(outside), os.open
    (tmp_path / "sub").mkdir()

    def open_or_exchange(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if path == b"sub" and not flags & os.O_PATH:
            exchange(tmp_path / "sub", outside)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return original(path, flags, *arguments, **options)

    top = os.open(tmp_path, os.O_RDONLY)
    monkeypatch.setattr(os, "open", open_or_exchange)
    try:
        with pytest.raises(NotADirectoryError):
            open_folder(b"sub", top, force=True)
    finally:
        os.close(top)
    assert snapshot(outside) == before


def test_nothing_outside_changes_while_an_adversary_exchanges_folders(pack: Path, outside: Path) -> None:
    before = snapshot(outside)
    ended = threading.Event()

    def adversary() -> None:
        while not ended.is_set():
            for temporary in pack.parent.glob(".target.*.fffs-tmp"):
                try:
                    exchange(temporary / "sub", outside)
                    (temporary / "sub").unlink()
                    (temporary / "sub-aside").rename(temporary / "sub")
                except OSError:
                    continue

    thread = threading.Thread(target=adversary)
    thread.start()
    outcomes = set()
    try:
        for _ in range(60):
            try:
                unpack(pack, pack.parent / "target", jobs=2)
                outcomes.add("unpacked")
                subprocess.run(["rm", "-rf", pack.parent / "target"], check=True)
            except WriteError:
                outcomes.add("refused")
    finally:
        ended.set()
        thread.join()
    assert outcomes
    assert snapshot(outside) == before


# ---------------------------------------------------------------- contents that are counted several times


def share_one_record(pack: Path, size: int) -> None:
    """Rewrite a pack: each file refers to the last record, which has that size."""
    parts = Pack.parse(pack.read_bytes())
    assert parts.trailer
    modes, refs = parts.trailer.arrays["mode"], parts.trailer.arrays["ref"]
    refs[[stat.S_ISREG(int(mode)) for mode in modes]] = len(parts.records) - 1
    parts.records[-1] = bytes(size)
    pack.write_bytes(parts.build())


def test_a_pack_that_would_unpack_to_more_than_it_has_is_refused_at_once(pack: Path) -> None:
    share_one_record(pack, MIB // 2)
    with pytest.raises(UnsupportedError, match=r"pack\.ffr: .* share records, and would take 2\.\d MB"):
        unpack(pack, pack.parent / "target")
    assert os.listdir(pack.parent) == ["pack.ffr"]


def test_files_may_share_a_record_as_long_as_they_are_not_more_than_the_pack(pack: Path) -> None:
    share_one_record(pack, 100)
    unpack(pack, pack.parent / "target")
    assert {path for path, data in contents(pack.parent / "target").items() if data == bytes(100)} == {
        b"a", b"sub/b", b"sub/c", b"z",
    }  # fmt: skip


def test_hard_links_are_one_file_however_large(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "0").write_bytes(bytes(MIB))
    for i in range(1, 50):
        (tmp_path / "f" / f"{i}").hardlink_to(tmp_path / "f" / "0")
    fffs.pack_folder(tmp_path / "f", tmp_path / "p.ffr")
    unpack(tmp_path / "p.ffr", tmp_path / "target")
    assert (tmp_path / "target" / "49").stat().st_nlink == 50
