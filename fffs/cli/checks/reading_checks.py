"""Checks of reading: the backends of the engine, the page cache, and limits of the process."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator

from fffs.base.descriptors import are_few
from fffs.base.memory import available_memory
from fffs.base.text import human
from fffs.cli.checks.finding import Finding, good, hint, setting
from fffs.native import engine, lib

_AIO_MAX, _AIO_NR = "/proc/sys/fs/aio-max-nr", "/proc/sys/fs/aio-nr"
_MAPS, _MAPS_USUAL = "/proc/sys/vm/max_map_count", 65530
_DISABLED = "/proc/sys/kernel/io_uring_disabled"
_SHM, _SHM_ENOUGH = "/dev/shm", 1 << 30
_CONTEXTS = 1024  # of Linux AIO that should be left: several threads of several processes


def check_reading() -> Iterator[Finding]:
    """Yield what is known of reading on this machine."""
    used = engine.name()
    yield good("engine", f"reads with {used}, in {os.cpu_count()} processors")
    if refused := lib.fffs_engine_select(b"uring"):
        yield _io_uring(-refused, used)
    else:
        yield good("io_uring", "works")
    yield _aio()
    engine.select(used)
    yield good("page cache", f"may take {human(available_memory())} now")
    yield _map_count()
    yield _descriptors()
    yield _shared_memory()


def _io_uring(error: int, used: str) -> Finding:
    """Return why io_uring cannot be used."""
    found = f"refused: {os.strerror(error)}; {used} is slower for files that are not in the page cache"
    disabled = setting(_DISABLED)
    if error == errno.EPERM and disabled in ("1", "2"):
        return hint("io_uring", found, f"have root allow it: sysctl kernel.io_uring_disabled=0 (it is {disabled})")
    if error in (errno.EPERM, errno.EACCES):
        return hint(
            "io_uring", found, "a seccomp filter forbids it, as Docker's default does: use a profile that allows it"
        )
    if error == errno.ENOMEM:
        return hint("io_uring", found, "raise the limit of locked memory: ulimit -l unlimited")
    if error == errno.ENOSYS:
        return hint("io_uring", found, "the kernel was built without it, or a seccomp filter (gVisor) hides it")
    return hint("io_uring", found, "use Linux 5.6 or later")


def _aio() -> Finding:
    name = "Linux AIO"
    if refused := lib.fffs_engine_select(b"aio"):
        return hint(
            name, f"refused: {os.strerror(-refused)}", "nothing, if io_uring works; otherwise batches are slower"
        )
    most, used = (int(setting(path) or 0) for path in (_AIO_MAX, _AIO_NR))
    if most - used < _CONTEXTS:
        cure = f"sysctl fs.aio-max-nr={max(2 * most, 1 << 20)}"
        return hint(name, f"{used} of {most} requests are reserved already", cure)
    return good(name, f"{most - used} requests are left")


def _map_count() -> Finding:
    most = setting(_MAPS)
    if most is not None and most.isdecimal() and int(most) < _MAPS_USUAL:
        return hint("max_map_count", f"{most}, fewer than usual", f"sysctl vm.max_map_count={_MAPS_USUAL}")
    return good("max_map_count", most or "unknown")


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files, {hard} if a program asks for it"
    if are_few():
        return hint("descriptors", text, "raise the limit: ulimit -n 4096")
    return good("descriptors", text)


def _shared_memory() -> Finding:
    try:
        status = os.statvfs(_SHM)
    except OSError as error:
        return hint(
            _SHM, os.strerror(error.errno or 0), "mount a tmpfs there: workers of torch pass batches through it"
        )
    left = status.f_bavail * status.f_frsize
    text = f"{human(left)} of {human(status.f_blocks * status.f_frsize)} are free"
    if left < _SHM_ENOUGH:
        cure = (
            "workers of torch pass batches through it: docker run --shm-size=8g, or mount -o remount,size=8g /dev/shm"
        )
        return hint(_SHM, text, cure)
    return good(_SHM, text)
