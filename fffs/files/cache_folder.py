"""The user's cache folder: found, made, and refused if other users could write to it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os

from fffs.base.cache_settings import OFF, wanted_folder
from fffs.files.dirfd import close

_log = logging.getLogger("fffs.cache")


def open_user_folder(create: bool) -> int | None:
    """Return a descriptor of ``$XDG_CACHE_HOME/fffs``, which the caller closes; None if caches are off, or it cannot be
    used.
    """
    if wanted_folder() == OFF:
        return None
    try:
        return open_default_folder(create)
    except OSError as error:
        _log.debug("no cache folder: %s", error)
        return None


def default_folder() -> str:
    """Return the path of ``$XDG_CACHE_HOME/fffs``. Raises OSError if this user has no home."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(base) or "\0" in base:
        raise OSError(errno.ENOENT, "this user has no home folder; set XDG_CACHE_HOME", base)
    return os.path.join(base, "fffs")


def open_default_folder(create: bool) -> int:
    """As ``open_user_folder``, also if caches are off. Raises OSError."""
    path = default_folder()
    base = os.path.dirname(path)
    if create and may_create(base):
        os.makedirs(base, 0o700, exist_ok=True)
    return open_private_folder(path, create and may_create(base))


def open_private_folder(path: str, create: bool, within: int | None = None) -> int:
    """Return a descriptor of a folder that only this user can write to.

    within: the descriptor of the folder in which path is relative. Raises OSError, also if others can write to it.
    """
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700, dir_fd=within)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=within)
    status = os.fstat(fd)
    # Another user who may write there could forge positions of records, and bytes without checksums.
    if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return fd
    close(fd)
    raise PermissionError(errno.EPERM, "other users may write to it, or own it", path)


def is_private(fd: int) -> bool:
    """Return whether a file is this user's, nobody else can write to it, and it has no other name. Raises OSError.

    While their folder was open to others, these may have put files there, with names elsewhere, which stay when it is
    closed.
    """
    status = os.fstat(fd)
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022 and status.st_nlink < 2


def may_create(base: str) -> bool:
    """Whether the folder, or the one above in which it would be made, is this user's or root's.

    Root with the home of another user, as after ``sudo -E``, would make folders there that this user cannot write to.
    """
    while not os.path.lexists(base):
        base = os.path.dirname(base)
    return os.stat(base).st_uid in (os.geteuid(), 0)
