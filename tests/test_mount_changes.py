"""Nothing can be changed: each call that would change something fails as on a read-only ext4, for each kind of node."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import mmap
import os
import re
import socket
import stat
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mounting import Mounts, describe, in_namespace, libc, wait_until

import fffs

pytestmark = pytest.mark.fuse

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="compares with a mounted image, which only root can mount")

# Every kind of node, and missing names.
NODES = {
    "file": "file",
    "empty file": "nothing in it",
    "program": "folder/program",
    "folder": "folder",
    "empty folder": "empty folder",
    "link": "link",
    "folder link": "folder link",
    "dangling link": "dangling",
    "loop": "loop",
    "root": "",
    "dot": "folder/.",
    "parent": "folder/..",
    "file with slash": "file/",
    "folder with slash": "folder/",
    "missing": "missing",
    "missing with slash": "missing/",
    "below missing": "missing/below",
    "below file": "file/below",
    "through a link": "folder link/program",
    "too long": "n" * 256,
}
RENAMEAT2, FCHMODAT2, OPENAT2 = 316, 452, 437
AT_FDCWD, AT_EMPTY_PATH, NOFOLLOW, REMOVEDIR = -100, 0x1000, 0x100, 0x200
SET_FLAGS, GET_FLAGS, CLONE = 0x40086602, 0x80086601, 0x40049409


def make_folder(folder: Path) -> Path:
    (folder / "folder").mkdir(parents=True)
    (folder / "empty folder").mkdir()
    (folder / "file").write_bytes(b"content " * 1000)
    (folder / "nothing in it").touch()
    (folder / "other").write_text("other")
    (folder / "folder" / "program").write_bytes(b"#!/bin/sh\n")
    (folder / "folder" / "program").chmod(0o755)
    (folder / "link").symlink_to("file")
    (folder / "folder link").symlink_to("folder")
    (folder / "dangling").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    os.link(folder / "other", folder / "folder" / "again")
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("source") / "folder")


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    fffs.pack_folder(folder, folder.parent / "packed.ffr")
    return folder.parent / "packed.ffr"


@pytest.fixture(scope="module")
def ext4(folder: Path) -> Iterator[Path]:
    """The same folder on a read-only ext4."""
    image, path = folder.parent / "image", folder.parent / "ext4"
    with open(image, "wb") as file:
        file.truncate(8 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-d", folder, image], check=True)
    path.mkdir()
    subprocess.run(["mount", "-o", "loop,ro,nosuid,nodev", image, path], check=True)
    yield path
    subprocess.run(["umount", path], check=True)


# ---------------------------------------------------------------- calls


def check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def name(path: Path | str) -> bytes:
    return os.fsencode(path)


def rename(old: str, new: str, flags: int) -> None:
    check(libc.syscall(RENAMEAT2, AT_FDCWD, name(old), AT_FDCWD, name(new), flags))


def open_with(flags: int) -> Callable[[str], int]:
    return lambda path: os.open(path, flags, 0o644)


OPENINGS = {
    "write": os.O_WRONLY,
    "read and write": os.O_RDWR,
    "append": os.O_WRONLY | os.O_APPEND,
    "truncate": os.O_WRONLY | os.O_TRUNC,
    "truncate for reading": os.O_RDONLY | os.O_TRUNC,
    "create": os.O_WRONLY | os.O_CREAT,
    "create for reading": os.O_RDONLY | os.O_CREAT,
    "create new": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "create or truncate": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "create a folder": os.O_RDONLY | os.O_CREAT | os.O_DIRECTORY,
    "write without following": os.O_WRONLY | os.O_NOFOLLOW,
    "write a folder": os.O_WRONLY | os.O_DIRECTORY,
    "write synchronously": os.O_WRONLY | os.O_SYNC,
    "write directly": os.O_WRONLY | os.O_DIRECT,
    "temporary file": os.O_WRONLY | os.O_TMPFILE,
    "temporary file, new": os.O_RDWR | os.O_TMPFILE | os.O_EXCL,
    "all three": os.O_ACCMODE,
}
KINDS = {
    "file": stat.S_IFREG,
    "fifo": stat.S_IFIFO,
    "socket": stat.S_IFSOCK,
    "device": stat.S_IFCHR,
    "disk": stat.S_IFBLK,
    "folder": stat.S_IFDIR,
    "link": stat.S_IFLNK,
}
RENAMES = {"": 0, " no replace": 1, " exchange": 2, " whiteout": 4, " two of them": 3, " unknown flag": 8}


def calls_by_name(root: str) -> dict[str, Callable[[str], Any]]:
    """Return the calls that take a path. Calls that open a file return a descriptor."""
    other, elsewhere = f"{root}/other", f"{root}/new"
    calls: dict[str, Callable[[str], Any]] = {f"open: {kind}": open_with(flags) for kind, flags in OPENINGS.items()}
    for kind, number in KINDS.items():
        calls[f"mknod {kind}"] = lambda p, n=number: os.mknod(p, n | 0o600, os.makedev(1, 3))  # type: ignore[misc]
    for kind, flags in RENAMES.items():
        calls[f"rename{kind} from"] = lambda p, f=flags: rename(p, elsewhere, f)  # type: ignore[misc]
        calls[f"rename{kind} to"] = lambda p, f=flags: rename(other, p, f)  # type: ignore[misc]
        calls[f"rename{kind} a folder to"] = lambda p, f=flags: rename(f"{root}/folder", p, f)  # type: ignore[misc]
        calls[f"rename{kind} to itself"] = lambda p, f=flags: rename(p, p, f)  # type: ignore[misc]
    for follow in (True, False):
        l = "" if follow else "l"  # noqa: E741 - as in lchown
        calls |= {
            f"{l}chown": lambda p, f=follow: os.chown(p, 1, 1, follow_symlinks=f),  # type: ignore[misc]
            f"{l}chown to nobody": lambda p, f=follow: os.chown(p, -1, -1, follow_symlinks=f),  # type: ignore[misc]
            f"{l}utimes": lambda p, f=follow: os.utime(p, ns=(1, 1), follow_symlinks=f),  # type: ignore[misc]
            f"{l}utimes now": lambda p, f=follow: os.utime(p, follow_symlinks=f),  # type: ignore[misc]
            f"{l}setxattr": lambda p, f=follow: os.setxattr(p, "user.x", b"x", follow_symlinks=f),  # type: ignore[misc]
            f"{l}setxattr create": lambda p, f=follow: os.setxattr(p, "user.x", b"x", 1, follow_symlinks=f),  # type: ignore[misc]
            f"{l}setxattr replace": lambda p, f=follow: os.setxattr(p, "user.x", b"x", 2, follow_symlinks=f),  # type: ignore[misc]
            f"{l}setxattr trusted": lambda p, f=follow: os.setxattr(p, "trusted.x", b"x", follow_symlinks=f),  # type: ignore[misc]
            f"{l}setxattr security": lambda p, f=follow: os.setxattr(p, "security.x", b"x", follow_symlinks=f),  # type: ignore[misc]
            f"{l}setxattr acl": lambda p, f=follow: os.setxattr(p, "system.posix_acl_access", b"x", follow_symlinks=f),  # type: ignore[misc]
            f"{l}removexattr": lambda p, f=follow: os.removexattr(p, "user.x", follow_symlinks=f),  # type: ignore[misc]
            f"{l}link from": lambda p, f=follow: os.link(p, elsewhere, follow_symlinks=f),  # type: ignore[misc]
        }
    return calls | {
        "unlink": os.unlink,
        "rmdir": os.rmdir,
        "unlinkat unknown flag": lambda p: check(libc.unlinkat(AT_FDCWD, name(p), 0x10)),
        "mkdir": os.mkdir,
        "symlink": lambda p: os.symlink("target", p),
        "link to": lambda p: os.link(other, p),
        "link from another file system": lambda p: os.link("/etc/passwd", p),
        "rename from another file system": lambda p: os.rename("/etc/passwd", p),
        "chmod": lambda p: os.chmod(p, 0o777),
        "lchmod": lambda p: check(libc.syscall(FCHMODAT2, AT_FDCWD, name(p), 0o777, NOFOLLOW)),
        "truncate": lambda p: os.truncate(p, 0),
        "truncate longer": lambda p: os.truncate(p, 1 << 20),
        "truncate below zero": lambda p: check(libc.truncate(name(p), ctypes.c_long(-1))),
        "access for writing": lambda p: check(libc.access(name(p), os.W_OK)),
        "access for all": lambda p: check(libc.access(name(p), os.R_OK | os.W_OK | os.X_OK)),
        "access for reading": lambda p: check(libc.access(name(p), os.R_OK)),
        "access for running": lambda p: check(libc.access(name(p), os.X_OK)),
        "access of nothing": lambda p: check(libc.access(name(p), os.F_OK)),
        "access with unknown mode": lambda p: check(libc.access(name(p), 8)),
        "bind a socket": bind,
    }


def bind(path: str) -> None:
    if len(os.path.basename(path)) > 100:
        return  # refused by Python itself
    with socket.socket(socket.AF_UNIX) as listening:
        # Relative, because the path of a socket must be short.
        here = os.open(".", os.O_RDONLY)
        try:
            os.chdir(os.path.dirname(path) or "/")
            listening.bind(os.path.basename(path) or ".")
        finally:
            os.fchdir(here)
            os.close(here)


def lock(kind: int, whole: int) -> bytes:
    return struct.pack("hhqqi4x", kind, 0, 0, whole, 0)


def copy_into(fd: int) -> None:
    with open("/etc/passwd", "rb") as source:
        os.copy_file_range(source.fileno(), fd, 10)


def send_into(fd: int) -> None:
    with open("/etc/passwd", "rb") as source:
        os.sendfile(fd, source.fileno(), 0, 10)


def splice_into(fd: int) -> None:
    ours, its = os.pipe()
    try:
        os.write(its, b"data")
        os.splice(ours, fd, 4)
    finally:
        os.close(ours)
        os.close(its)


def clone_into(fd: int) -> None:
    with open("/etc/passwd", "rb") as source:
        fcntl.ioctl(fd, CLONE, source.fileno())


def map_for_writing(fd: int) -> None:
    mmap.mmap(fd, 100, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE).close()


def map_privately(fd: int) -> None:
    with mmap.mmap(fd, 100, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as view:
        view[0] = 1


def calls_by_fd() -> dict[str, Callable[[int], Any]]:
    """Return the calls that take a descriptor that was opened for reading."""
    calls: dict[str, Callable[[int], Any]] = {
        f"fallocate {mode}": lambda fd, m=mode: check(  # type: ignore[misc]
            libc.fallocate(fd, m, ctypes.c_long(0), ctypes.c_long(4096))
        )
        for mode in (0, 1, 2, 3, 8, 9, 16, 32, 64, 128)
    }
    return calls | {
        "write": lambda fd: os.write(fd, b"x"),
        "write nothing": lambda fd: os.write(fd, b""),
        "pwrite": lambda fd: os.pwrite(fd, b"x", 0),
        "writev": lambda fd: os.writev(fd, [b"x"]),
        "pwritev": lambda fd: os.pwritev(fd, [b"x"], 0, os.RWF_APPEND),
        "ftruncate": lambda fd: os.ftruncate(fd, 0),
        "fchmod": lambda fd: os.fchmod(fd, 0o777),
        "fchown": lambda fd: os.fchown(fd, 1, 1),
        "futimens": lambda fd: os.utime(fd),
        "fsetxattr": lambda fd: os.setxattr(fd, "user.x", b"x"),
        "fremovexattr": lambda fd: os.removexattr(fd, "user.x"),
        "fsync": os.fsync,
        "fdatasync": os.fdatasync,
        "syncfs": lambda fd: check(libc.syncfs(fd)),
        "sync_file_range": lambda fd: check(libc.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(0), 7)),
        "flock": lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        "flock shared": lambda fd: fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB),
        "lock for reading": lambda fd: fcntl.fcntl(fd, fcntl.F_SETLK, lock(fcntl.F_RDLCK, 10)),
        "lock for writing": lambda fd: fcntl.fcntl(fd, fcntl.F_SETLK, lock(fcntl.F_WRLCK, 10)),
        "unlock": lambda fd: fcntl.fcntl(fd, fcntl.F_SETLK, lock(fcntl.F_UNLCK, 0)),
        "ask for locks": lambda fd: fcntl.fcntl(fd, fcntl.F_GETLK, lock(fcntl.F_WRLCK, 0)),
        "lock the open file": lambda fd: fcntl.fcntl(fd, fcntl.F_OFD_SETLK, lock(fcntl.F_RDLCK, 10)),
        "lease": lambda fd: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK),
        "lease for writing": lambda fd: fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK),
        "seal": lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, 1),
        "append from now on": lambda fd: fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND),
        "copy_file_range": copy_into,
        "sendfile": send_into,
        "splice": splice_into,
        "clone": clone_into,
        "map for writing": map_for_writing,
        "map privately": map_privately,
        "get flags": lambda fd: fcntl.ioctl(fd, GET_FLAGS, bytes(8)) and None,
        "set flags": lambda fd: fcntl.ioctl(fd, SET_FLAGS, bytes(8)) and None,
        "unknown ioctl": lambda fd: fcntl.ioctl(fd, 0x5A5A, 0),
        "create below": lambda fd: os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=fd),
        "mkdir below": lambda fd: os.mkdir("new", dir_fd=fd),
        "unlink below": lambda fd: os.unlink("program", dir_fd=fd),
        "give a name": lambda fd: check(libc.linkat(fd, b"", AT_FDCWD, b"new", AT_EMPTY_PATH)),
    }


def outcome(call: Callable[[Any], Any], argument: Any) -> str:
    """Return the name of the error, or the result. Closes a descriptor that was opened."""
    try:
        result = call(argument)
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except ValueError as error:
        return str(error)
    if isinstance(result, int) and result > 2:
        os.close(result)
        return "opened"
    return f"done {result!r}"


def all_outcomes(root: Path) -> dict[str, str]:
    found = {}
    for (kind, path), (what, call) in itertools.product(NODES.items(), calls_by_name(str(root)).items()):
        found[f"{what}: {kind}"] = outcome(call, os.path.join(root, path))
    flags = {"": os.O_RDONLY, ", path only": os.O_PATH | os.O_NOFOLLOW}
    for (kind, path), (how, flag) in itertools.product(NODES.items(), flags.items()):
        full = os.path.join(root, path)
        if os.path.exists(full) or (flag & os.O_PATH and os.path.lexists(full)):
            for what, by_fd in calls_by_fd().items():
                fd = os.open(full, flag)
                found[f"{what}: open {kind}{how}"] = outcome(by_fd, fd)
                os.close(fd)
    return found


# ---------------------------------------------------------------- the tests

# Calls that can succeed only by changing something.
NAMES_CHANGED = ("mknod", "unlink", "mkdir", "rmdir", "symlink", "link to", "chmod", "truncate", "setxattr", "utimes")

# Different from ext4, with both results: the flags of lsattr(1) do not exist.
DIFFERENT = {"get flags": ("done None", "ENOTTY")}


@as_root
def test_changes_fail_as_on_any_read_only_file_system(folder: Path, packed: Path, ext4: Path, mounts: Mounts) -> None:
    mounted = mounts(packed)
    before = describe(folder)
    expected, found = all_outcomes(ext4), all_outcomes(mounted)
    assert found.keys() == expected.keys() and len(found) > 2500
    assert describe(mounted) == describe(folder) == before
    different = {
        call: (expected[call], found[call])
        for call in found
        if found[call] != expected[call] and (expected[call], found[call]) != DIFFERENT.get(call.split(":")[0])
    }
    assert not different, "\n".join(f"{call}: ext4 {a}, here {b}" for call, (a, b) in different.items())
    assert sum(result == "EROFS" for result in found.values()) > 500


@as_root
def test_changes_fail_even_when_somebody_remounts_it_writable(folder: Path, packed: Path, mounts: Mounts) -> None:
    mounted = mounts(packed)
    mounts.daemon.expect("remounted as writable by another process: it is read-only again")
    before, harmless = describe(mounted), all_outcomes(mounted)
    with remounted_writable(mounted):
        found = all_outcomes(mounted)
        written = [
            writing(mounted / "file", flags) for flags in (os.O_WRONLY, os.O_RDWR | os.O_APPEND) for _ in range(50)
        ]
    # The kernel considers the mount writable, and a rename of a name to itself as done. With the fast path it does not
    # ask whether a file may be opened; writing then fails.
    allowed = re.compile("access|rename.* (to itself|a folder to): " + ("|open: " if mounts.fastpath else ""))
    done = [
        call for call, result in found.items() if result.startswith(("done", "opened")) and result != harmless[call]
    ]
    changed = [call for call in done if not allowed.match(call)]
    assert not changed, "\n".join(changed)
    # Calls for missing or unsuitable nodes may fail for that reason; all others must fail with EROFS.
    refused = {call for call, result in found.items() if result == "EROFS"}
    assert refused >= {"unlink: file", "mkdir: missing", "chmod: folder", "setxattr: file", "open: create new: missing"}
    assert refused >= {"rename from: file", "link from: file", "symlink: missing", "rmdir: empty folder"}
    assert refused >= {
        "open: truncate: file",
        "truncate: file",
        "utimes: file",
        "mknod fifo: missing",
        "removexattr: file",
    }
    assert {result for results in written for result in results.values()} <= {"EROFS", "ENOTSUP", "EINVAL"}
    wait_until(lambda: os.statvfs(mounted).f_flag & os.ST_RDONLY)
    assert describe(mounted) == before == describe(folder)


@as_root
def test_changes_fail_where_nobody_can_make_it_read_only_again(packed: Path, mounts: Mounts) -> None:
    """The daemon does not notice that the mount is made writable in another mount namespace."""
    mounted = mounts(packed)
    mounts.daemon.expect("read-only again")  # any other mount on this machine makes the daemon look
    before, found = describe(mounted), set[str]()

    def change(_folder: Path) -> None:
        subprocess.run(["mount", "-i", "-o", "remount,rw", mounted], check=True)
        found.update(result for what, result in all_outcomes(mounted).items() if what.startswith(NAMES_CHANGED))
        for flags in (os.O_WRONLY, os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_DIRECT):
            found.update(writing(mounted / "file", flags).values())

    in_namespace(change)
    assert "EROFS" in found and not any(result.startswith(("done", "opened")) for result in found), found
    assert describe(mounted) == before


@contextlib.contextmanager
def remounted_writable(path: Path) -> Iterator[None]:
    """Remount repeatedly; the daemon undoes it."""
    ended = threading.Event()

    def remount() -> None:
        while not ended.is_set():
            libc.mount(None, os.fsencode(path), None, ctypes.c_ulong(32 | 2 | 4 | 1024), None)
            ended.wait(0.002)

    thread = threading.Thread(target=remount)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def writing(path: Path, flags: int) -> dict[str, str]:
    """Return the results of writing to a file in every way, if it can be opened for that."""
    try:
        fd = os.open(path, flags)
    except OSError as error:
        return {"open": errno.errorcode[error.errno or 0]}
    calls = calls_by_fd()
    means = ("write", "pwrite", "writev", "ftruncate", "fallocate 0", "fallocate 3", "sendfile", "fchmod", "futimens")
    try:
        return {what: outcome(calls[what], fd) for what in means}
    finally:
        os.close(fd)
