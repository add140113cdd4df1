"""lease: the lock of a target in a store. An object that its owner renews; others take it when it is not renewed."""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from fffs.base.machine import boot_id
from fffs.base.stopping import pause
from fffs.cluster.cleaning import GRACE
from fffs.errors import AccessError, FffsError, WriteError
from fffs.objects.http_settings import deadline
from fffs.objects.names import parse_url
from fffs.objects.small import delete_objects, put_object, read_object

RENEW: Final = 5.0  # seconds
LIMIT: Final = 30.0
"""Seconds after which an owner that did not renew it has ended. Measured by who wants it, so that no clocks are
compared."""
_PAUSE: Final = 1.0
_SETTLE: Final = 1.0
"""Seconds in which processes that found the lock of an owner that has ended replace it."""

_log = logging.getLogger("fffs.objects")


class _Lease:
    """What an owner knows of its lock: until when nobody else can have it. Thread-safe."""

    def __init__(self, target: str, begin: float) -> None:
        """target: for messages. begin: right before the lock was put."""
        self._target, self._until = target, begin + LIMIT
        self._changed = threading.Condition()
        self._is_lost = self._is_refused = False
        self.is_sure = True
        self.is_kept = False
        """Whether it is not removed at the end: a request that needs it may still be carried out."""

    def renew(self, begin: float) -> None:
        """Note that the lock was ours, and was put again; begin: right before.

        Whoever found the one before, for LIMIT seconds, puts another one within _SETTLE seconds or gives it back. So if
        this one came late, the next renewal shows whether somebody did.
        """
        with self._changed:
            self.is_sure, self._is_refused = _now() <= self._until, False
            self._until = begin + LIMIT
            self._changed.notify_all()

    def refuse(self) -> None:
        """Note that the store refuses to renew it."""
        with self._changed:
            self._is_refused = True
            self._changed.notify_all()

    def lose(self) -> None:
        """Note that another driver had it."""
        with self._changed:
            self._is_lost = True
            self._changed.notify_all()

    def left(self) -> float:
        """Return for how many seconds nobody else can have it. Waits, if it was not renewed in time, until it is sure.

        Raises WriteError: another driver had it, or the store does not answer. Stopped: see ``pause``.
        """
        end = time.monotonic() + deadline()
        with contextlib.suppress(TimeoutError), self._changed:
            while not self._is_lost:
                seconds = self._until - _now()
                if self.is_sure and seconds >= LIMIT / 3:  # enough for a request
                    return seconds
                if self._is_refused:
                    break
                self._changed.wait(pause(end))
        raise WriteError(
            errno.EAGAIN,
            self._target,
            f"its lock was not renewed for {LIMIT:.0f} seconds, and another process may have taken it; begin again",
        )


_held: Final[dict[str, _Lease]] = {}  # by URL
os.register_at_fork(after_in_child=_held.clear)


def seconds_left(url: str) -> float:
    """Return for how many seconds no other process can have the lock that this process holds; infinity if it does not.

    What is deleted later may be what another driver has written. Waits and raises as ``_Lease.left``.
    """
    held = _held.get(url)
    return held.left() if held else math.inf


def keep(url: str) -> None:
    """Do not remove the lock that this process holds: others have it LIMIT seconds after it was renewed last."""
    if held := _held.get(url):
        held.is_kept = True


def _forget(url: str, held: _Lease | None) -> None:
    if _held.get(url) is held:
        _held.pop(url, None)


def _now() -> float:
    """Return a time in seconds that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextlib.contextmanager
def lease(url: str, target: str) -> Iterator[None]:
    """Hold the lock. An owner that was killed on this machine is noticed at once, another one after LIMIT seconds.

    A process that was stopped for so long loses it, and logs that; what two drivers write is the same. It must not
    delete anything then: see ``seconds_left``.

    Args:
        url: of the object.
        target: what is locked, for messages.

    Raises:
        WriteError: another process holds it, or it cannot be written. AccessError, ReadError: as ``read_object``.

    """
    owner = {"owner": secrets.token_hex(8), **_here()}
    end, held = threading.Event(), None
    try:
        held = _held[url] = _Lease(target, _take(url, target, owner))
        thread = threading.Thread(target=_renew, args=(url, target, owner, end, held), daemon=True)
        thread.start()
    except FffsError:
        raise
    except BaseException:  # an interrupt, for example; perhaps it is there already
        end.set()
        _forget(url, held)
        _remove_soon(url, owner)
        raise
    patience = LIMIT
    try:
        yield
    except Exception:
        raise
    except BaseException:
        patience = GRACE
        raise
    finally:
        end.set()
        _forget(url, held)
        # The thread deletes it, also after an interrupt. If the store does not answer so long, or another interrupt
        # ends this, it goes on, but ends with the process; then the lock stays, as that of a process that was killed.
        thread.join(patience)


def _here() -> dict[str, Any]:
    """Return what identifies this process among those of all machines, except that its number is used again."""
    return {
        "host": socket.gethostname(),
        "boot": boot_id(),
        "space": _space(),
        "pid": os.getpid(),
    }


def _space() -> str:
    """Return the name of the namespace that the number of this process is in, or "" if /proc does not tell."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def _content(owner: dict[str, Any], renewed: int) -> bytes:
    return json.dumps({**owner, "renewed": renewed}).encode("ascii")


def _take(url: str, target: str, owner: dict[str, Any]) -> float:
    """Put the lock. Returns the time right before. Raises as ``lease``."""
    for _ in range(3):
        begin = _now()
        try:
            put_object(url, _content(owner, 0), new=True)
            return begin
        except WriteError as error:
            if error.errno != errno.EEXIST:
                raise
        there = read_object(url)
        _await_end(url, target, there)
        if there is not None and (taken := _take_over(url, target, owner, there)) is not None:
            return taken
    raise WriteError(errno.EAGAIN, target, "another process is writing its parts")


def _take_over(url: str, target: str, owner: dict[str, Any], dead: bytes) -> float | None:
    """Replace the lock of an owner that has ended. Returns the time right before; None: try again. Raises WriteError if
    another process replaced it.

    Those that find it at the same time replace it within _SETTLE seconds, wait as long, and the last one has it. One
    that took longer may have replaced the lock of one that did not wait for it, and gives it back.
    """
    begin = _now()
    if read_object(url) != dead:
        return None
    put_object(url, _content(owner, 0))
    if _now() - begin > _SETTLE:
        _remove(url, owner)
        time.sleep(RENEW + _PAUSE)  # the other one puts it again
        return None
    time.sleep(_SETTLE)
    now = read_object(url)
    if not _is_ours(now, owner):
        raise WriteError(errno.EAGAIN, target, f"another process is writing its parts{_who(now or b'')}")
    return begin


def _await_end(url: str, target: str, there: bytes | None) -> None:
    """Return when the owner has ended. Raises WriteError if it has not."""
    if there is None or _has_ended(there):
        return
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        time.sleep(_PAUSE)
        now = read_object(url)
        if now is None:
            return
        if now != there:
            raise WriteError(errno.EAGAIN, target, f"another process is writing its parts{_who(now)}")


def _has_ended(content: bytes) -> bool:
    """Whether the owner was a process of this machine that is not there any more."""
    fields, here = _fields(content), _here()
    if any(not here[name] or fields.get(name) != here[name] for name in ("host", "boot", "space")):
        return False
    try:
        os.kill(int(fields.get("pid", 0)), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, TypeError, OverflowError):
        pass
    return False


def _fields(content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _who(content: bytes) -> str:
    fields = _fields(content)
    return f" (process {fields.get('pid')} of {fields.get('host')})" if "host" in fields else ""


def _is_ours(content: bytes | None, owner: dict[str, Any]) -> bool:
    return content is not None and _fields(content).get("owner") == owner["owner"]


def _renew(url: str, target: str, owner: dict[str, Any], end: threading.Event, held: _Lease) -> None:
    """Renew it until the end, and delete it then; or until it is another's."""
    renewed, begin = 0, _now()
    while not end.wait(max(begin + RENEW - _now(), 0) if held.is_sure else 2 * _SETTLE):
        renewed += 1
        try:
            now, begin = read_object(url), _now()
            if not _is_ours(now, owner):
                held.lose()
                if now is not None:
                    _log.warning("%s: another process took its lock%s and writes its parts, too", target, _who(now))
                    return
            put_object(url, _content(owner, renewed), new=now is None)
            held.renew(begin)
            if now is None:
                _log.warning(
                    "%s: its lock was gone and is put again; another process may have written its parts", target
                )
        except FffsError as error:  # the next time
            begin = _now()
            if isinstance(error, AccessError):
                held.refuse()
    if held.is_kept:
        with contextlib.suppress(FffsError):
            if _is_ours(read_object(url), owner):  # so that nobody sees that this process has ended
                put_object(url, _content({"owner": owner["owner"]}, renewed + 1))
    else:
        _remove(url, owner)


def _remove_soon(url: str, owner: dict[str, Any]) -> None:
    """Like ``_remove``, but wait for that no longer than an interrupt should take."""
    thread = threading.Thread(target=_remove, args=(url, owner), daemon=True)
    thread.start()
    thread.join(GRACE)


def _remove(url: str, owner: dict[str, Any]) -> None:
    """Delete it if it is ours. If the store does not answer, it ends by itself."""
    with contextlib.suppress(FffsError):
        if _is_ours(read_object(url), owner):
            delete_objects(url, [parse_url(url).key])
