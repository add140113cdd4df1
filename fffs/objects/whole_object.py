"""Objects that are sent in one request, if there is no other one, or in place of what was seen there."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from fffs.errors import SourceChangedError, SourceNotFoundError, WriteError
from fffs.objects.client import ask_upload
from fffs.objects.names import ObjectName
from fffs.objects.part_sender import digest, refusal
from fffs.objects.remote import RemoteFile
from fffs.objects.transfer import deadline

Condition = dict[str, str]
"""A header line with which a store refuses a request, or nothing."""

NONE_THERE: Final[Condition] = {"If-None-Match": "*"}
_TRIES: Final = 3


def as_seen(target: ObjectName) -> Condition:
    """Return the condition that an object is as it is now. Nothing if its ETag does not say so."""
    looked = ask_upload(target, "look")
    if not looked["exists"]:
        return NONE_THERE
    etag = str(looked["etag"])
    return {"If-Match": etag} if etag.startswith('"') else {}


def put_whole(target: ObjectName, data: Any, new: bool) -> None:
    """Send an object, any contiguous bytes.

    new: raise FileExistsError if there is one with other bytes.

    Raises:
        WriteError, AccessError, ReadError: it cannot be sent.

    """
    if new and _has(target, data) is False:  # some stores ignore the condition
        raise FileExistsError
    reply = _send(target, data, NONE_THERE if new else {})
    if reply.status == 501 and new:  # the store has no conditions
        if _has(target, data) is False:
            raise FileExistsError
        reply = _send(target, data, {})
    if reply.status in (409, 412) and new:
        has = _has(target, data)
        if has:  # the answer to an earlier request was lost
            return
        if has is False or reply.status == 412:
            raise FileExistsError
    if not reply.is_good:
        raise refusal(target, reply)


def replace_seen(target: ObjectName, data: Any, examine: Callable[[], object]) -> None:
    """Send an object in place of what is there, if that is still there when the store takes the request.

    examine: called before each request, unless it raises.

    Raises as ``put_whole``, and what ``examine`` raises.
    """
    for _ in range(_TRIES):
        reply = _send(target, data, as_seen(target), examine)
        if reply.status == 501:  # the store has no conditions
            reply = _send(target, data, {}, examine)
        if reply.status not in (404, 409, 412):
            break
        if _has(target, data):  # the answer to an earlier request was lost, or another attempt was first
            return
    if not reply.is_good:
        raise refusal(target, reply)


def _send(target: ObjectName, data: Any, condition: Condition, examine: Callable[[], object] = lambda: None) -> Any:
    """Return the answer to a request with all bytes. Raises WriteError."""
    sending = importlib.import_module("fffs.objects.sending")  # which imports much that reading does not need
    sender = sending.Sender()
    headers = {"Content-MD5": digest(data), "Content-Type": "application/octet-stream", **condition}

    def url() -> str:  # for each attempt
        examine()
        return str(ask_upload(target, "url")["url"])

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
