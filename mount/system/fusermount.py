"""Runs fusermount3, by which users other than root mount and unmount, also where descriptors or processes are few."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from fffs.base.descriptors import above_standard, describe
from fffs.files.dirfd import HANDLE

PROGRAM = "fusermount3"
BUSY = "busy"  # how its message for EBUSY ends, in the C locale
NO_PROCESS = "the system refuses to start a process"

# Starting it takes three pipes: for its input, for its messages, and to learn whether it was started.
_NEEDED = 6
_spares: list[int] = []  # descriptors that are kept for them


@contextmanager
def spare_descriptors() -> Iterator[None]:
    """Keep what it takes to unmount, whatever this process lacks meanwhile. Raises OSError."""
    try:
        _keep(_NEEDED)
        yield
    finally:
        _give_up()


def _keep(count: int) -> None:
    for _ in range(count):
        _spares.append(above_standard(os.open(os.sep, HANDLE)))


def _give_up() -> None:
    while _spares:
        os.close(_spares.pop())


def unmount(mountpoint: str, lazy: bool) -> str:
    """Unmount with the descriptors that are kept for it. Returns what went wrong, as ``run`` does."""
    count = len(_spares)
    _give_up()
    try:
        return run(_unmounting(mountpoint, lazy))
    finally:
        with suppress(OSError):
            _keep(count)


def replace_process(mountpoint: str) -> None:
    """Unmount lazily in place of this process: that needs no other one. Returns only if fusermount3 cannot be run."""
    with suppress(OSError):
        os.execvpe(PROGRAM, [PROGRAM, *_unmounting(mountpoint, lazy=True)], _environment())


def _unmounting(mountpoint: str, lazy: bool) -> list[str]:
    return ["-u", *(["-z"] if lazy else []), "--", mountpoint]


def run(arguments: Sequence[str], environment: Mapping[str, str] | None = None, fds: Sequence[int] = ()) -> str:
    """Run it. Returns what went wrong, if its effect shows that it failed.

    Its exit code does not show that: the code is lost in a process that ignores SIGCHLD.

    environment: further variables. fds: descriptors that it inherits.
    """
    try:
        done = subprocess.run(
            [PROGRAM, *arguments],
            env={**_environment(), **(environment or {})},
            pass_fds=fds,
            input=b"",  # a pipe: /dev/null may be missing
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    except FileNotFoundError:
        return f"{PROGRAM} is missing; install the package fuse3"
    except OSError as error:
        return f"{PROGRAM}: {_describe(error)}"
    text = done.stdout.decode(errors="replace").strip()
    last = text[max(text.rfind(f"{PROGRAM}: "), 0) :]  # a name in it may have several lines
    return last.replace("\n", "\\n") or f"{PROGRAM} failed ({done.returncode})"


def _environment() -> dict[str, str]:
    """In the C locale, its messages have the system's words for a failed call, which are compared."""
    return {**os.environ, "LC_ALL": "C"}


def _describe(error: OSError) -> str:
    """Return why it could not be started, and what to do if processes or descriptors are lacking."""
    if error.errno == errno.EAGAIN:
        return f"{NO_PROCESS}; allow this user or container more of them (ulimit -u)"
    return describe(error)
