"""Notes of uploads that this machine began: what a killed writer left is aborted by the next one.

``$XDG_STATE_HOME/fffs/uploads`` (default: ``~/.local/state``) has a file for each upload, locked by its writer. A file
without a lock belongs to a writer that is dead. Files of other machines, which may share the folder, are left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import socket
import time
from typing import Any, Final

from fffs.base.descriptors import above_standard
from fffs.errors import FffsError
from fffs.files.cache_folder import is_private, may_create, open_private_folder
from fffs.files.dirfd import close
from fffs.files.temporary import close_locked, lock
from fffs.objects.client import ask_upload
from fffs.objects.names import ObjectName, parse_url

_log = logging.getLogger("fffs.objects")

_LONGEST: Final = 1 << 16  # bytes of a note
_EARLIER: Final = 60.0  # seconds by which the clock of a store may be behind
_LATER: Final = 180.0  # seconds within which an upload begins after its note


class Note:
    """The note of one upload. ``upload`` is its id, and None while the store is being asked for one."""

    def __init__(self, target: ObjectName, place: str) -> None:
        """place: the URL of the object without a signature, which also names the server."""
        self._owner, self._fd, self._name = os.getpid(), -1, f"{secrets.token_hex(12)}.json"
        self._content = {"url": target.url, "place": place, "host": socket.gethostname(), "began": time.time()}
        self._folder = _open_folder(create=True)
        if self._folder is None:
            return
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fd = above_standard(os.open(self._name, flags, 0o600, dir_fd=self._folder))
            if not lock(self._fd, fcntl.LOCK_EX):
                raise OSError("its file system has no locks")  # others would take this upload for a dead one's
            self.write(None)
        except OSError as error:
            _log.debug("no note of an upload: %s", error)
            self.remove()

    def write(self, upload: str | None) -> None:
        """Note the id of the upload. Failures are not errors."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                text = json.dumps({**self._content, "upload": upload}).encode()
                os.pwrite(self._fd, text, 0)
                os.ftruncate(self._fd, len(text))
                os.fsync(self._fd)

    def remove(self) -> None:
        """Remove the note: the upload is complete or aborted. May be called again; in a child of fork it stays."""
        if self._folder is None:
            return
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
        self.close()

    def close(self) -> None:
        """Give up the lock: the next writer aborts the upload."""
        if self._fd >= 0:
            close_locked(self._fd, self._owner)
        if self._folder is not None:
            close(self._folder)
        self._fd, self._folder = -1, None


def abort_left_uploads(place_of: Any) -> None:
    """Abort the uploads of writers on this machine that are dead. Failures are not errors.

    place_of: returns the ``place`` of an object, with the current settings. Uploads to other servers are left alone.
    """
    folder = _open_folder(create=False)
    if folder is None:
        return
    try:
        for name in os.listdir(folder):
            if name.endswith(".json"):
                with contextlib.suppress(OSError, FffsError, ValueError, KeyError, TypeError, RecursionError):
                    _abort_if_left(folder, name, place_of)
    finally:
        close(folder)


def _abort_if_left(folder: int, name: str, place_of: Any) -> None:
    fd = above_standard(os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder))
    try:
        if not is_private(fd) or not lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB):
            return
        note = json.loads(os.pread(fd, _LONGEST, 0) or b"{}")
        if not note:  # its writer was killed before it asked a store, or is about to lock it
            if time.time() - os.fstat(fd).st_mtime > _LATER:
                os.unlink(name, dir_fd=folder)
            return
        target = parse_url(note["url"])
        if note["host"] != socket.gethostname() or place_of(target) != note["place"]:
            return
        for upload in [note["upload"]] if note["upload"] else _begun_about(target, float(note["began"])):
            ask_upload(target, "abort", upload=upload)
            _log.info("%s: aborted an upload that a killed process left", target.name)
        os.unlink(name, dir_fd=folder)
    finally:
        close_locked(fd, os.getpid())


def _begun_about(target: ObjectName, began: float) -> list[str]:
    """Return the uploads of an object that began when a writer was killed that did not note the id of its own."""
    found = ask_upload(target, "unfinished")["uploads"]
    return [upload for upload, time in found if began - _EARLIER <= time <= began + _LATER]


def _open_folder(create: bool) -> int | None:
    """Return a descriptor of the folder of notes, or None if there is none that only this user can write to."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if not os.path.isabs(base):
        return None
    try:
        if create and may_create(base):
            os.makedirs(os.path.join(base, "fffs"), 0o700, exist_ok=True)
        return open_private_folder(os.path.join(base, "fffs", "uploads"), create and may_create(base))
    except OSError as error:
        _log.debug("no folder for notes of uploads: %s", error)
        return None
