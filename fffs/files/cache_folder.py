"""The user's cache folder: found, made, and refused if other users could write to it."""

from __future__ import annotations

import contextlib
import logging
import os

from fffs.files.dirfd import close

_log = logging.getLogger("fffs.cache")

SWITCH = "FFFS_CACHE"
"""Environment: ``off``: no cache is read or written; or the folder for objects; default: fffs in the cache folder."""


def is_off() -> bool:
    """Whether the environment turns caches off."""
    return os.environ.get(SWITCH, "").lower() == "off"


def open_user_folder(create: bool) -> int | None:
    """Return a descriptor of ``$XDG_CACHE_HOME/fffs``, which the caller closes, or None if it cannot be used."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if is_off() or not os.path.isabs(base):
        return None
    try:
        if create and _may_create(base):
            os.makedirs(base, 0o700, exist_ok=True)
        return open_private_folder(os.path.join(base, "fffs"), create and _may_create(base))
    except (OSError, ValueError) as error:
        _log.debug("no cache folder: %s", error)
        return None


def open_private_folder(path: str, create: bool, within: int | None = None) -> int | None:
    """Return a descriptor of a folder that only this user can write to; None if others can.

    within: the descriptor of the folder in which path is relative. Raises OSError.
    """
    if create:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700, dir_fd=within)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=within)
    status = os.fstat(fd)
    # Another user who may write there could forge positions of records, and bytes without checksums.
    if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
        return fd
    _log.debug("cache folder %s: other users may write to it, or own it", path)
    close(fd)
    return None


def _may_create(base: str) -> bool:
    """Whether the folder, or the one above in which it would be made, is this user's or root's.

    Root with the home of another user, as after ``sudo -E``, would make folders there that this user cannot write to.
    """
    while not os.path.lexists(base):
        base = os.path.dirname(base)
    return os.stat(base).st_uid in (os.geteuid(), 0)
