"""Objects that are sent in one request, if there is no other one, or in place of what was seen there."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from fffs.errors import SourceChangedError, SourceNotFoundError, WriteError
from fffs.objects.client import ask_upload
from fffs.objects.http_settings import deadline
from fffs.objects.names import ObjectName
from fffs.objects.part_sender import digest, refusal
from fffs.objects.protocol import NONE_THERE, Condition, Guard
from fffs.objects.remote import RemoteFile

_TRIES: Final = 3


def replace_seen(target: ObjectName, send: Callable[[Condition], bool]) -> None:
    """Put an object in place of what is there, if that is still there when the store takes the request: it may take the
    request late, when others have put something newer.

    send: puts it on a condition. It returns False if the store has no conditions, and raises FileExistsError if the
        condition does not hold.

    Raises FileExistsError if the object is another one each time, and what ``send`` raises.
    """
    for tries in range(1, _TRIES + 1):
        try:
            if not send(dict(ask_upload(target, "look")["seen"])):
                send({})
            return
        except FileExistsError:
            if tries == _TRIES:
                raise


def put_new(target: ObjectName, data: Any) -> None:
    """Send an object if there is no other one. Raises FileExistsError if there is, and as ``put_whole``."""
    for condition in (NONE_THERE, {}):  # some stores ignore it, and others refuse it
        if _has(target, data) is False:
            raise FileExistsError
        if put_whole(target, data, condition):
            return


def put_whole(target: ObjectName, data: Any, condition: Condition, guard: Guard | None = None) -> bool:
    """Send an object, any contiguous bytes, in one request. Returns False if the store has no conditions.

    Raises:
        FileExistsError: the condition does not hold.
        UsageError: see Guard.
        WriteError, AccessError, ReadError: it cannot be sent.

    """
    reply = _send(target, data, condition, guard)
    if condition and reply.status == 501:
        return False
    if condition and reply.status in (404, 409, 412):
        has = _has(target, data)
        if has:  # the answer to an earlier request was lost, or another attempt at the same bytes was first
            return True
        if has is False or reply.status == 412 or condition != NONE_THERE:
            raise FileExistsError
    # A proxy may answer with a page of its own.
    if not reply.is_good or not (reply.headers.get("etag") or _has(target, data)):
        raise refusal(target, reply)
    return True


def _send(target: ObjectName, data: Any, condition: Condition, guard: Guard | None = None) -> Any:
    """Return the answer to a request with all bytes. Raises WriteError."""
    sending = importlib.import_module("fffs.objects.sending")  # which imports much that reading does not need
    sender = sending.Sender()
    headers = {"Content-MD5": digest(data), "Content-Type": "application/octet-stream", **condition}

    def url() -> str:  # for each attempt
        return str(ask_upload(target, "url", guard=guard)["url"])

    try:
        return sender.send("PUT", url, data, headers, deadline())
    except sending.NotSentError as error:
        raise WriteError(error.errno, target.name, str(error.strerror)) from None
    finally:
        sender.close()


def _has(target: ObjectName, data: Any) -> bool | None:
    """Whether the object has these bytes; None: there is none. Its ETag need not be an MD5, if it is encrypted."""
    looked = ask_upload(target, "look")
    if not looked["exists"]:
        return None
    if str(looked["etag"]).strip('"') == hashlib.md5(data, usedforsecurity=False).hexdigest():
        return True
    try:
        with RemoteFile.open(target.url) as file:
            if file.size != len(data):
                return False
            there = np.empty(file.size, np.uint8)
            file.read_at(0, there)
            return there.tobytes() == bytes(data)
    except SourceNotFoundError:  # it was removed just now
        return None
    except SourceChangedError:
        return False
