"""Mounts and unmounts: by system calls if they are permitted, otherwise by fusermount3.

libfuse gets the descriptor instead of mounting itself: it prints errors instead of returning them, and the descriptor
may be a socket at first (see ``fffs.mount.daemon.handshake``).
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
from contextlib import suppress
from dataclasses import dataclass

from fffs.base.descriptors import above_standard, describe
from fffs.errors import MountError
from fffs.files.dirfd import HANDLE
from fffs.mount.system import fusermount
from fffs.mount.system.mounts import TYPE, Mount, cover_of, mounts, number_below

DEVICE = "/dev/fuse"
UNCONFINED = "--security-opt apparmor=unconfined"
CONTAINER = f"start the container with --device {DEVICE} --cap-add SYS_ADMIN (and {UNCONFINED}, where AppArmor is)"
NO_DEVICE = f"load it (modprobe fuse), or {CONTAINER}"
_WITHOUT = "read without a mount (fffs cat, fffs.PackedFolder)"
NO_RIGHT = f"have root allow it (chmod 666 {DEVICE}), or {_WITHOUT}"
NO_NAME = f"have root add your user id to /etc/passwd, or {_WITHOUT}"
PACKAGES = (
    "apt-get (or dnf) install fuse3 python3-pyfuse3, for the Python of the distribution "
    "(a virtual environment needs --system-site-packages); or pip install 'fffs[mount]', which compiles pyfuse3 "
    "(Debian, Ubuntu: apt-get install gcc python3-dev pkg-config fuse3 libfuse3-dev; "
    "Fedora: dnf install gcc python3-devel pkgconf fuse3 fuse3-devel)"
)
"""What to do where mounting is not possible."""
OPEN = b"/proc/self/fd/%d"  # a path that leads to what a descriptor has open, for calls that take only paths

ELSEWHERE = "others move it, or the folders above it"
ATTEMPTS = 100  # to unmount a mount that others move, or above which they exchange folders for links

# <sys/mount.h>
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_NOATIME = 1, 2, 4, 8, 32, 1024
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class MountRequest:
    """A request to mount: the mount point and a descriptor of it, the name of the source, and the options for the
    kernel.
    """

    mountpoint: str
    folder: int
    source: str
    allow_other: bool
    noexec: bool


class BusyError(MountError):
    """The mount is in use."""


class NoProcessError(MountError):
    """No process could be started to unmount it."""


def attach(request: MountRequest) -> int:
    """Mount, and return the descriptor that the kernel's requests are read from. Closing it ends the connection.

    Raises:
        MountError: with the reason.

    """
    if os.geteuid() == 0:
        try:
            return _attach_as_root(request)
        except PermissionError:
            pass  # root of a container: fusermount3 may have more rights; if not, it gives the reason
        except OSError as error:
            raise MountError(f"{request.mountpoint}: cannot mount: {describe(error)}") from None
    return _attach_as_user(request)


def _attach_as_root(request: MountRequest) -> int:
    try:
        fd = above_standard(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO):
            raise MountError(f"{DEVICE}: {os.strerror(error.errno)}; {NO_DEVICE}") from None
        raise
    data = f"fd={fd},rootmode={stat.S_IFDIR:o},user_id={os.getuid()},group_id={os.getgid()},default_permissions"
    if request.allow_other:
        data += ",allow_other"
    # By descriptor: a folder above the mount point may have been exchanged for a link since that was examined.
    source, target = os.fsencode(request.source), OPEN % request.folder
    try:
        _mount(source, target, TYPE.encode(), _flags(request.noexec), data.encode())
    except OSError:
        os.close(fd)
        raise
    return fd


def remount_read_only(fd: int, noexec: bool) -> None:
    """Set the flags of a mount again. fd: its root. Raises OSError."""
    _mount(None, OPEN % fd, None, _MS_REMOUNT | _flags(noexec), None)


def _flags(noexec: bool) -> int:
    return _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOATIME | (_MS_NOEXEC if noexec else 0)


def _mount(source: bytes | None, target: bytes, kind: bytes | None, flags: int, data: bytes | None) -> None:
    if _libc.mount(source, target, kind, ctypes.c_ulong(flags), data) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _attach_as_user(request: MountRequest) -> int:
    """Mount by fusermount3, which sends the descriptor over the socket whose number is in ``_FUSE_COMMFD``."""
    # fusermount3 splits options at commas that have no backslash before them.
    source = request.source.replace("\\", "\\\\").replace(",", "\\,")
    options = ["ro", "nosuid", "nodev", "noatime", "default_permissions", f"fsname={source}", "subtype=fffs"]
    if request.allow_other:
        options.append("allow_other")
    if request.noexec:
        options.append("noexec")
    try:
        ours, its = socket.socketpair()
    except OSError as error:
        raise MountError(f"{request.mountpoint}: cannot mount: {describe(error)}") from None
    with ours, its:
        arguments = ["-o", ",".join(options), "--", request.mountpoint]
        problem = fusermount.run(arguments, {"_FUSE_COMMFD": str(its.fileno())}, (its.fileno(),))
        its.close()
        _, fds, _, _ = socket.recv_fds(ours, 1, 1)
    if not fds:
        raise MountError(f"{request.mountpoint}: cannot mount: {problem}{_advice(problem)}")
    os.set_inheritable(fds[0], False)
    return above_standard(fds[0])


def _advice(problem: str) -> str:
    """Return what to do about an error of fusermount3; empty if it says that itself."""
    if DEVICE in problem and os.strerror(errno.EACCES) in problem:
        return f"; {NO_RIGHT}"
    if "could not determine username" in problem:
        return f"; {NO_NAME}"
    if "option allow_other only" in problem:
        return "; have root add that line, or omit allow_other"
    if "access to mountpoint" in problem:
        return "; name a folder that you may write to"
    if "mount failed" in problem:  # by mount(2)
        return "; fffs doctor says what is missing"
    return ""


def read_ahead(device: str, kibibytes: int) -> None:
    """Set how far the kernel reads ahead, if we are root. ``device``: major:minor of the mount.

    Call this after FUSE_INIT, whose reply can lower this value but not raise it.
    """
    with suppress(OSError), open(f"/sys/class/bdi/{device}/read_ahead_kb", "w", encoding="ascii") as setting:
        setting.write(str(kibibytes))


def detach(mount: Mount, *, lazy: bool = False, table: int | None = None) -> None:
    """Unmount a mount, if it is still there, wherever others moved it. Lazily: detach it at once; it ends when the last
    file is closed.

    umount2(2) takes a path, and no descriptor, which would make the mount busy. So another mount that is made at the
    same place between the look at what is there and that call is unmounted instead.

    table: see ``mounts``.

    Raises:
        BusyError: files are open in it, or it has the working folder of a process.
        NoProcessError: fusermount3 is needed, and the system refuses to start a process.
        MountError: with the reason; another mount hides it, for example.

    """
    found = find_again(mount, table)
    for _ in range(ATTEMPTS):
        if not found:
            return
        if cover := cover_of(found, table):
            raise MountError(describe_cover(found, cover))
        problem, tried = detach_topmost(found.path, lazy, found.number), found.path
        if not problem:
            return
        found = find_again(mount, table)
        if found and found.path == tried and problem != ELSEWHERE:
            break
    if found:
        raise _failure(found.path, problem)


def _failure(path: str, problem: str) -> MountError:
    if problem == os.strerror(errno.EBUSY) or problem.endswith(fusermount.BUSY):
        return BusyError(f"{path}: busy")
    kind = NoProcessError if fusermount.NO_PROCESS in problem else MountError
    who = "" if os.geteuid() == 0 else f"; root can, and the user who mounted it: sudo fffs umount {path}"
    return kind(f"{path}: cannot unmount: {problem}{who}")


def find_again(mount: Mount, table: int | None) -> Mount | None:
    """Return a mount as it is now: others may have moved it, or a folder above it."""
    return next((other for other in mounts(table, mount.device) if other.number == mount.number), None)


def describe_cover(mount: Mount, cover: Mount) -> str:
    """Return an error message. cover: what hides the mount."""
    where = "" if cover.path == mount.path else f" on {cover.path}"
    return (
        f"{mount.path}: it is still mounted there, below {cover.source} ({cover.type}){where}; "
        f"unmount that, and then: fffs umount {mount.path}"
    )


def detach_topmost(mountpoint: str, lazy: bool, number: str = "") -> str:
    """Unmount the topmost mount at an absolute path. Returns what went wrong, if its effect shows that it failed.

    number: of the only mount that may be unmounted. ELSEWHERE is returned if the path leads to another.
    """
    if os.geteuid() == 0:
        try:
            return _detach_as_root(mountpoint, lazy, number)
        except OSError as error:
            if error.errno != errno.EPERM:
                return os.strerror(error.errno or 0)
    return fusermount.unmount(mountpoint, lazy)


def _detach_as_root(mountpoint: str, lazy: bool, number: str) -> str:
    """As ``detach_topmost``. Raises OSError.

    The folder above the mount point is opened first: whoever may write to one further above can exchange that for a
    link, and umount2(2) follows links in all components of its path but the last.
    """
    flags = (_MNT_DETACH if lazy else 0) | _UMOUNT_NOFOLLOW
    above, name = os.path.split(mountpoint)
    name = name or os.curdir  # of the root folder
    try:
        folder = os.open(above, HANDLE)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        _umount(os.fsencode(mountpoint), flags)  # it has to end, whatever the process lacks
        return ""
    try:
        if number and number_below(folder, name) != number:
            return ELSEWHERE
        # /proc is missing, perhaps.
        path = os.path.join(OPEN % folder, os.fsencode(name)) if os.path.isdir(OPEN % folder) else mountpoint
        _umount(os.fsencode(path), flags)
    finally:
        os.close(folder)
    return ""


def _umount(path: bytes, flags: int) -> None:
    if _libc.umount2(path, flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def become_fusermount(mount: Mount) -> None:
    """Unmount by fusermount3 in place of this process: that needs no other one. Returns only if it cannot be run, or if
    the mount is gone or hidden.
    """
    found = find_again(mount, None)
    if found and not cover_of(found):
        fusermount.replace_process(found.path)
