"""Mounts an EROFS image and the files that it refers to, without a daemon and without anything to clean up.

The image is a file without a name. The mounts API of Linux 5.2 lets it be mounted all the same: the kernel opens its
source by a path, relative to the working folder, and that folder is a tmpfs which is mounted nowhere and has a link to
the image. So the path is free to say where the mount comes from. The kernel drops the image with the last mount, and
everything with this process if it is killed before.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from fffs.base.descriptors import above_standard, describe
from fffs.errors import MountError
from fffs.mount.system.mounts import IN_KERNEL, MountIdentity, identity_of

# The numbers of these system calls are the same on every architecture. <linux/mount.h>, <sched.h>
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_CLOEXEC, _SET_FLAG, _SET_STRING, _CREATE, _FROM_EMPTY_PATH, _TO_EMPTY_PATH = 1, 0, 1, 6, 4, 64
_RDONLY, _NOSUID, _NODEV, _NOEXEC, _NOATIME = 1, 2, 4, 8, 16
_CLONE_FS = 0x200
# <linux/loop.h>. struct loop_config: the descriptor, the block size, and struct loop_info64, of which lo_flags are set
# (read-only, and cleared when the last user closes it), and lo_file_name.
_GET_FREE, _CONFIGURE, _FLAGS = 0x4C82, 0x4C0A, 1 | 4
_LOOP_CONFIG = struct.Struct("=II 52x I 64s 112x 64x")
LONGEST = 240  # bytes of a source; the kernel accepts 255 in all
CONTROL = "/dev/loop-control"
WHY = {
    errno.ENODEV: "it has no EROFS (modprobe erofs)",
    errno.ENOSYS: "it is too old; Linux 6.4 is needed",
    errno.EINVAL: "it refuses the image; Linux 6.4 is needed",
    errno.EPERM: "the capability SYS_ADMIN is needed",
}
ATTEMPTS = 100  # to get a free loop device, while other processes take them

_libc = ctypes.CDLL(None, use_errno=True)


class CannotError(MountError):
    """The kernel cannot mount this source; a daemon can. ``reason`` is the message without what to do."""

    def __init__(self, reason: str, advice: str = "") -> None:
        super().__init__(f"{reason}; {advice}" if advice else reason)
        self.reason = reason


def shown_source(source: str) -> bytes:
    """Return what the table of mounts shows as the source: a mark, and the name, or the end of a long one."""
    name = os.fsencode(source)
    return IN_KERNEL.encode() + (name if len(name) <= LONGEST else b"..." + name[-LONGEST:])


def attach(
    image: int,
    devices: Sequence[int],
    mountpoint: str,
    source: str,
    noexec: bool,
    commit: Callable[[], AbstractContextManager[int]],
) -> MountIdentity:
    """Mount an image, and return which mount it is. Nothing is left if that fails, or if this process is killed.

    Args:
        image: a file with the image; it needs no name.
        devices: the files that the image refers to.
        mountpoint: what messages call the folder.
        source: what the table of mounts shows, as ``shown_source`` returns it.
        noexec: do not allow programs in the mount to be run.
        commit: called right before the mount appears. Its value is a descriptor of the folder to mount on.

    Raises:
        CannotError: with the reason.

    """
    shown = shown_source(source)
    with ExitStack() as stack:
        try:
            try:
                root = _make(stack, image, devices, shown, noexec)
            except OSError as error:
                if error.errno != errno.ENOTBLK:  # the kernel, or the file system of the image, needs a loop device
                    raise
                loops = [_loop(stack, fd, source) for fd in (image, *devices)]
                root = _make(stack, loops[0], loops[1:], shown, noexec)
            identity = identity_of(root, os.fsdecode(shown))
            with commit() as folder:
                _call(_MOVE_MOUNT, root, b"", folder, b"", _FROM_EMPTY_PATH | _TO_EMPTY_PATH)
        except OSError as error:
            why = WHY.get(error.errno or 0) or describe(error)
            raise CannotError(f"{mountpoint}: the kernel cannot mount it: {why}") from None
    return identity


def _make(stack: ExitStack, image: int, devices: Sequence[int], source: bytes, noexec: bool) -> int:
    """Return a descriptor of a mount that is mounted nowhere yet. Raises OSError."""
    context = _open(stack, b"erofs")
    for device in devices:
        _configure(context, _SET_STRING, b"device", b"/proc/self/fd/%d" % device)
    _configure(context, _SET_FLAG, b"ro")
    _create(context, image, source)
    flags = _RDONLY | _NOSUID | _NODEV | _NOATIME | (_NOEXEC if noexec else 0)
    return _closing(stack, _call(_FSMOUNT, context, _CLOEXEC, flags))


def _create(context: int, image: int, source: bytes) -> None:
    """Create the file system, by a thread that has its own working folder. Raises OSError."""
    errors: list[OSError] = []

    def work() -> None:
        try:
            with ExitStack() as stack:
                folder = _open(stack, b"tmpfs")
                _configure(folder, _CREATE)
                _check(_libc.unshare(_CLONE_FS))
                os.fchdir(_closing(stack, _call(_FSMOUNT, folder, _CLOEXEC, _NOSUID)))
                if above := os.path.dirname(source):
                    os.makedirs(above)
                os.symlink(b"/proc/self/fd/%d" % image, source)
                _configure(context, _SET_STRING, b"source", source)
                _configure(context, _CREATE)
        except OSError as error:
            errors.append(error)
        finally:
            done.set()

    # Not join(): before Python 3.13, it takes a running thread for an ended one after Ctrl-C.
    done = threading.Event()
    threading.Thread(target=work).start()
    try:
        done.wait()
    finally:
        done.wait()  # also after Ctrl-C: the thread uses descriptors that the caller closes
    if errors:
        raise errors[0]


def _loop(stack: ExitStack, file: int, name: str) -> int:
    """Return a descriptor of a loop device over a file. The device is freed with its last user. Raises OSError."""
    with open(CONTROL, "rb", buffering=0) as control:
        for attempt in range(ATTEMPTS):
            number = fcntl.ioctl(control, _GET_FREE)
            device = os.open(f"/dev/loop{number}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(device, _CONFIGURE, _LOOP_CONFIG.pack(file, 0, _FLAGS, os.fsencode(name)[-63:]))
                return _closing(stack, device)
            except OSError as error:
                os.close(device)
                if error.errno != errno.EBUSY or attempt == ATTEMPTS - 1:
                    raise
    raise AssertionError


def _open(stack: ExitStack, kind: bytes) -> int:
    return _closing(stack, _call(_FSOPEN, kind, _CLOEXEC))


def _closing(stack: ExitStack, fd: int) -> int:
    fd = above_standard(fd)
    stack.callback(os.close, fd)
    return fd


def _configure(context: int, command: int, key: bytes | None = None, value: bytes | None = None) -> None:
    _call(_FSCONFIG, context, command, key, value, 0)


def _call(number: int, *arguments: int | bytes | None) -> int:
    """Make a system call. Raises OSError."""
    converted = [ctypes.c_long(item) if isinstance(item, int) else ctypes.c_char_p(item) for item in arguments]
    return _check(_libc.syscall(ctypes.c_long(number), *converted))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
