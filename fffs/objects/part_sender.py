"""PartSender: sends the parts of an upload in threads, from a file in memory whose pages are freed as they are sent."""

from __future__ import annotations

import base64
import hashlib
import importlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from errno import EACCES, EIO
from typing import Any, Final

from fffs.base.descriptors import above_standard
from fffs.base.stopping import StopFlag, Stopped
from fffs.errors import FffsError, WriteError
from fffs.files.pages import free, mapped
from fffs.objects.client import access_error, ask_upload
from fffs.objects.describing import is_denied
from fffs.objects.http_settings import deadline
from fffs.objects.names import ObjectName
from fffs.objects.protocol import Condition, Guard
from fffs.objects.redacting import redact, secrets_of
from fffs.objects.unfinished import Note

THREADS: Final = 4
_WAITING: Final = 4
"""Parts that may wait while others are sent."""
_LOOK: Final = 0.5  # seconds between looks for signals
_LAST: Final = 5.0  # seconds in which an upload is aborted, because a user may wait
_BYTES: Final = 512 << 20
"""Bytes of parts that are sent or wait, from the second part on."""


class PartSender:
    """Sends parts of one upload. ``put``, ``finish`` and ``stop`` may be called from any thread of one process."""

    def __init__(self, target: ObjectName, place: str, fd: int) -> None:
        """place: see ``Note``. fd: the file of which parts are sent."""
        self._target = target
        # Its own descriptor, until the last thread has ended: whoever interrupts ``stop`` closes fd, whose number may
        # then be that of another file.
        self._fd = above_standard(os.dup(fd))
        self._close = weakref.finalize(self, os.close, self._fd)
        self._close.atexit = False
        self._note = Note(target, place)
        self._changed = threading.Condition()
        self._queue: deque[tuple[int, int, int]] = deque()
        self._sizes = self._parts = 0  # of parts that are sent or wait
        self._etags: dict[int, str] = {}
        self._failed: BaseException | None = None
        self._stop = StopFlag()  # also of the questions that its threads ask
        self._threads: list[threading.Thread] = []
        self._senders: list[Any] = []
        try:
            self._upload = str(ask_upload(target, "begin", deadline() + 60, deadline=deadline())["upload"])
            self._note.write(self._upload)
        except BaseException:
            self._close()
            self._note.close()  # an upload may have begun: the next writer looks
            raise

    def put(self, number: int, begin: int, end: int) -> None:
        """Send a part of the file soon. Waits while many others wait. Raises what sending another one raised."""
        with self._changed:
            self._wait(lambda: self._has_room(end - begin))
            self._raise_failure()
            self._queue.append((number, begin, end))
            self._sizes += end - begin
            self._parts += 1
            if len(self._threads) < min(THREADS, self._parts):
                thread = threading.Thread(target=self._work, daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()

    def _wait(self, is_ready: Callable[[], bool]) -> None:
        """Wait, with the lock held, until something is so, or sending has failed or been stopped."""
        # A signal that comes right before the wait does not end it; its handler runs when the wait ends.
        while not self._changed.wait_for(lambda: self._failed is not None or self._stop.is_set or is_ready(), _LOOK):
            pass

    def _has_room(self, size: int) -> bool:
        return self._parts < THREADS + _WAITING and (not self._parts or self._sizes + size <= _BYTES)

    def finish(self) -> list[str]:
        """Wait until all parts are sent, and return their ETags. Raises what sending raised."""
        with self._changed:
            self._wait(lambda: not self._parts)
            self._raise_failure()
            return [self._etags[number] for number in sorted(self._etags)]

    def complete(self, etags: list[str], condition: Condition, new_only: bool, guard: Guard | None = None) -> bool:
        """Make the object of the parts. new_only: the condition is that there is no object.

        Returns False if the store has no conditions, except with ``new_only``. This may then be called again.

        Raises FileExistsError if the condition does not hold, after which this may be called again, too; and as
        ``ask_upload``.
        """
        answer = ask_upload(
            self._target,
            "complete",
            2 * deadline() + 60,
            upload=self._upload,
            etags=etags,
            condition=condition,
            new_only=new_only,
            guard=guard,
            deadline=deadline(),
        )
        if answer.get("done"):
            self.stop()
            self._note.remove()
        return bool(answer.get("done"))

    def abort(self) -> None:
        """Stop, and remove all parts from the store. If that fails, the next writer on this machine does it."""
        self.stop()
        try:
            seconds = min(deadline(), _LAST)
            with StopFlag().here():  # also in a thread that is stopped
                ask_upload(self._target, "abort", 2 * seconds, upload=self._upload, deadline=seconds)
        except (FffsError, OSError):
            self._note.close()
        else:
            self._note.remove()

    def abandon(self) -> None:
        """In a child of fork: close what is the parent's."""
        self._close()
        self._note.close()

    def cancel(self) -> None:
        """Let all threads end soon; ``put`` raises Stopped, which ``Jobs`` expects."""
        with self._changed:
            self._stop.set()
            self._queue.clear()
            for sender in self._senders:
                sender.cancel()
            self._changed.notify_all()

    def stop(self) -> None:
        """End all threads of this object. May be called again."""
        self.cancel()
        for thread in self._threads:
            if thread is not threading.current_thread():  # a collector may run in any thread
                thread.join()
        if threading.current_thread() not in self._threads:
            self._close()

    def _raise_failure(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._stop.is_set:
            raise Stopped

    # ------------------------------------------------------------ threads

    def _work(self) -> None:
        """Send parts until there are no more."""
        sending = importlib.import_module("fffs.objects.sending")  # which imports much that reading does not need
        sender = sending.Sender()
        with self._changed:
            self._senders.append(sender)
        try:
            with self._stop.here():
                self._send_parts(sender)
        except (sending.CancelledError, Stopped):
            pass
        except sending.NotSentError as error:
            self._fail(WriteError(error.errno, self._target.name, str(error.strerror)))
        except BaseException as error:
            self._fail(error)
        finally:
            sender.close()

    def _send_parts(self, sender: Any) -> None:
        while (part := self._next()) is not None:
            number, begin, end = part
            etag = self._send(sender, number, begin, end)
            with self._changed:
                self._etags[number] = etag
                self._sizes -= end - begin
                self._parts -= 1
                self._changed.notify_all()

    def _next(self) -> tuple[int, int, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._stop.is_set or self._failed is not None)
            return self._queue.popleft() if self._queue and self._failed is None and not self._stop.is_set else None

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failed = self._failed or error
            self._changed.notify_all()

    def _send(self, sender: Any, number: int, begin: int, end: int) -> str:
        """Send a part and free its memory. Returns its ETag."""

        def url() -> str:
            return str(ask_upload(self._target, "url", upload=self._upload, part=number + 1)["url"])

        with mapped(self._fd, begin, end) as data:
            reply = sender.send("PUT", url, data, {"Content-MD5": digest(data)}, deadline())
        etag = reply.headers.get("etag", "")
        if not reply.is_good or not etag:
            raise refusal(self._target, reply)
        free(self._fd, begin, end)
        return str(etag)


def refusal(target: ObjectName, reply: Any) -> Exception:
    """Return the exception for an answer that is not good."""
    said = redact(reply.describe(), secrets_of(os.environ))
    if is_denied(str(reply.status), reply.describe()):
        return access_error(target, said)
    return WriteError(EACCES if reply.status == 405 else EIO, target.name, said)


def digest(data: Any) -> str:
    """Return the value of the header Content-MD5, with which a store checks what it received."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
