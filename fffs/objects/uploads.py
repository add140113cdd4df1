"""Uploads of objects, in the store process: begun, signed for each part, completed, and aborted when the owner is gone.

S3 keeps the parts of an upload until it is completed or aborted, and charges for them. So the process that begins an
upload is one that survives its owner: whatever ends the owner, the uploads that it left are aborted.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import threading
from datetime import datetime
from errno import ENOENT
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape, unescape

from fffs.errors import AccessError, UsageError
from fffs.files.inodes import place
from fffs.objects.describing import ObjectExistsError
from fffs.objects.lasting import LastingStore
from fffs.objects.obstore_writes import ObstoreWrites
from fffs.objects.protocol import NONE_THERE, Message
from fffs.objects.s3_requests import DEADLINE, S3Requests, refuse_socks
from fffs.objects.sending import NotSentError, Reply
from fffs.objects.stores import StoreSettings, time_of

_ID: Final = re.compile(rb"<UploadId>([^<]+)</UploadId>")
_UPLOAD: Final = re.compile(rb"<Upload>(.*?)</Upload>", re.DOTALL)
_KEY: Final = re.compile(rb"<Key>([^<]*)</Key>")
_BEGAN: Final = re.compile(rb"<Initiated>([^<]*)</Initiated>")
_UPLOADS: Final = b"<ListMultipartUploadsResult"
_COMPLETED: Final = b"CompleteMultipartUploadResult"
_BYTES: Final = {"Content-Type": "application/octet-stream"}
_XML: Final = {"Content-Type": "application/xml"}
_GOODBYE: Final = 10.0  # seconds in which uploads are aborted when the owner is gone
_SENDING: Final = "300s"  # for a request of obstore; 64 MiB need 2 MBit/s then


class Uploads:
    """Uploads to one bucket of a store. Thread-safe."""

    def __init__(self, settings: StoreSettings, store: LastingStore, scheme: str, bucket: str) -> None:
        self._settings, self._scheme, self._bucket = settings, scheme, bucket
        self._requests = S3Requests(settings, bucket)
        sending = LastingStore(functools.partial(settings.make, scheme, bucket, _SENDING))
        self._obstore = ObstoreWrites(store, sending)
        self._lock = threading.Condition()
        self._unfinished: dict[str, str] = {}  # id -> key
        self._beginning = 0

    def answer(self, request: Message) -> Message:
        """Return the answer to a request. Raises what went wrong."""
        action, key, deadline = request["action"], request["key"], float(request.get("deadline", DEADLINE))
        if action == "place":
            return {"place": self._place(key)}
        if action == "look":
            found = self._look(key, deadline)
            beside = request.get("beside", []) if found["exists"] else []
            return {**found, "beside": [ending for ending in beside if self._look(key + ending, deadline)["exists"]]}
        if action == "spool":
            self._spool(request, key, deadline)
            return {"done": True}
        if action == "begin":
            return self._begin(key, deadline)
        if action == "url":  # for a part, or for a whole object
            self._examine(request, deadline)
            return {"url": self._requests.sign("PUT", key, self._named(request))}
        if action == "complete":
            return self._complete(key, request, deadline)
        if action == "delete":
            self._delete(request["keys"], deadline)
            return {}
        if action == "abort":
            self._abort(key, request["upload"], deadline)
            return {}
        if action == "unfinished":
            return {"uploads": self._list(key, deadline)}
        raise ValueError(f"there is no action {action!r}")

    def abort_all(self) -> None:
        """Abort all uploads that are neither complete nor aborted. Nothing can be written afterwards."""
        self.stop_spools()
        with self._lock:
            self._lock.wait_for(lambda: not self._beginning, _GOODBYE)
            left = list(self._unfinished.items())
        for upload, key in left:
            # If this fails, the next writer on this machine tries again.
            with contextlib.suppress(OSError, RuntimeError, AccessError, UsageError):
                self._abort(key, upload, _GOODBYE)

    def stop_spools(self) -> None:
        """Abort the uploads of obstore, which end with this process. Nothing can be written by it afterwards."""
        self._obstore.stop(_GOODBYE)

    # ------------------------------------------------------------ any store

    def _spool(self, request: Message, key: str, deadline: float) -> None:
        """Store the file that the owner has open. If it closes that, the number may be another's."""
        examine = functools.partial(self._examine, request, deadline)
        with Path(request["path"]).open("rb") as file:
            if list(place(os.fstat(file.fileno()))) != request["inode"]:
                raise FileNotFoundError(ENOENT, "it was closed", key)
            self._obstore.put_file(key, file, request["condition"], examine, deadline)

    @property
    def _is_ours(self) -> bool:
        """Whether requests are made here, not by obstore."""
        return self._scheme == "s3" and self._requests.are_possible

    def _look(self, key: str, deadline: float) -> Message:
        """Return whether there is an object, how one is written, and the condition that it is as it is now.

        The condition is nothing if the ETag of the object does not say so.
        """
        place = self._place(key)
        if not self._is_ours:
            refuse_socks(self._settings, self._scheme, self._bucket)
            seen = self._obstore.seen(key, deadline)
            etag = seen.get("e_tag", "")
            return {"exists": seen != NONE_THERE, "etag": etag, "seen": seen, "parts": False, "place": place}
        found = self._requests.look(key, deadline)
        seen = NONE_THERE if found is None else {"If-Match": found} if found.startswith('"') else {}
        return {"exists": found is not None, "etag": found or "", "seen": seen, "parts": True, "place": place}

    def _place(self, key: str) -> str:
        return self._settings.plain_url(self._scheme, self._bucket, key)

    def _examine(self, request: Message, deadline: float) -> None:
        """Raise UsageError unless the object that a request depends on is there (see ``Guard``)."""
        if request.get("guard") is None:
            return
        key, ending, message = request["guard"]
        wanted = ending.encode("ascii")
        read_end = self._requests.read_end if self._is_ours else self._obstore.read_end
        if read_end(key, len(wanted), deadline) != wanted:
            raise UsageError(message)

    def _delete(self, keys: list[str], deadline: float) -> None:
        """Delete objects, as far as they are there."""
        if self._is_ours:
            self._requests.delete(keys, deadline)
        else:
            self._obstore.delete(keys)

    # ------------------------------------------------------------ S3

    def _named(self, request: Message) -> dict[str, str]:
        """Return the query of a part. An upload that another process began is this one's from now on."""
        if not request.get("upload"):
            return {}
        with self._lock:
            self._unfinished[request["upload"]] = request["key"]
        return {"partNumber": str(request["part"]), "uploadId": request["upload"]}

    def _begin(self, key: str, deadline: float) -> Message:
        with self._lock:
            self._beginning += 1
        try:
            reply = self._requests.send("POST", key, {"uploads": ""}, deadline, headers=_BYTES)
            found = _ID.search(reply.body)
            if not reply.is_good or found is None:
                raise RuntimeError(reply.describe())
            upload = unescape(found[1].decode())
            with self._lock:
                self._unfinished[upload] = key
            return {"upload": upload}
        finally:
            with self._lock:
                self._beginning -= 1
                self._lock.notify_all()

    def _complete(self, key: str, request: Message, deadline: float) -> Message:
        """Make an object of parts, if the condition, a header line or nothing, holds. Returns whether it is ``done``:
        without conditions in the store, it is only if ``new_only``, and there is no other object.

        An answer may be lost, and the second request refused because the first one succeeded: then the object is there
        with the ETag that these parts have. So it is looked for unless the answer confirms it: a status of 200 says
        only that the store has begun.
        """
        etags, condition, reply = list(request["etags"]), dict(request["condition"]), None
        try:
            if "If-None-Match" in condition:  # which some stores ignore
                self._refuse_other(key, etags, deadline)
            reply = self._send_parts(key, request, condition, deadline)
            if reply.status == 501 and condition:  # the store has no conditions
                if not request["new_only"]:
                    return {"done": False}
                self._refuse_other(key, etags, deadline)
                reply = self._send_parts(key, request, {}, deadline)
        except NotSentError:
            pass  # it may have succeeded
        if reply is None or not reply.is_good or _COMPLETED not in reply.body:
            there = self._look(key, deadline)
            if there["etag"].strip('"') != _etag_of(etags):
                if reply is None or reply.is_good:
                    what = "nothing answers" if reply is None else f"HTTP status {reply.status} without a result"
                    raise RuntimeError(f"{what}, and the object is not there")
                if condition and _is_other(reply, there["exists"]):
                    raise ObjectExistsError
                raise RuntimeError(reply.describe())
        with self._lock:
            self._unfinished.pop(request["upload"], None)
        return {"done": True}

    def _send_parts(self, key: str, request: Message, condition: dict[str, str], deadline: float) -> Reply:
        parts = "".join(
            f"<Part><PartNumber>{k}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
            for k, etag in enumerate(request["etags"], 1)
        )
        body = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
        query = {"uploadId": request["upload"]}
        examine = functools.partial(self._examine, request, deadline)
        return self._requests.send("POST", key, query, deadline, body, _XML | condition, examine=examine)

    def _refuse_other(self, key: str, etags: list[str], deadline: float) -> None:
        """Raise ObjectExistsError if there is an object that is not of these parts."""
        there = self._look(key, deadline)
        if there["exists"] and there["etag"].strip('"') != _etag_of(etags):
            raise ObjectExistsError

    def _abort(self, key: str, upload: str, deadline: float) -> None:
        reply = self._requests.send("DELETE", key, {"uploadId": upload}, deadline, is_strict=True)
        if not reply.is_good and reply.status != 404:
            raise RuntimeError(reply.describe())
        with self._lock:
            self._unfinished.pop(upload, None)

    def _list(self, key: str, deadline: float) -> list[tuple[str, float]]:
        """Return the unfinished uploads of a key, and when they began, in seconds since 1970."""
        found: list[tuple[str, float]] = []
        reply = self._requests.send("GET", "", {"uploads": "", "prefix": key}, deadline)
        if not reply.is_good or _UPLOADS not in reply.body:
            raise RuntimeError(reply.describe())
        for entry in _UPLOAD.findall(reply.body):
            name, upload, began = _KEY.search(entry), _ID.search(entry), _BEGAN.search(entry)
            if name and upload and began and unescape(name[1].decode()) == key:
                time = time_of(began[1].decode())
                found.append((unescape(upload[1].decode()), _seconds(time)))
        return found


def _is_other(reply: Reply, exists: bool) -> bool:
    """Whether a refusal says that there is another object than the condition of the request wants."""
    return reply.status == 412 or (reply.status == 409 and exists) or b"<Code>NoSuchKey<" in reply.body


def _seconds(time: datetime | None) -> float:
    return time.timestamp() if time else 0.0


def _etag_of(etags: list[str]) -> str:
    """Return the ETag of an object of these parts, as S3 computes it. Nothing if it does not follow from theirs."""
    try:
        digests = [bytes.fromhex(etag.strip('"')) for etag in etags]
    except ValueError:
        return "unknown"
    return f"{hashlib.md5(b''.join(digests), usedforsecurity=False).hexdigest()}-{len(etags)}"
