"""S3Requests: requests to a bucket of S3 that obstore does not make, signed with the keys that this process has."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Mapping
from typing import Final
from xml.sax.saxutils import escape

from fffs.errors import AccessError, UsageError
from fffs.objects.proxies import can_use, proxy_of
from fffs.objects.sending import LONGEST, Reply, Sender
from fffs.objects.sigv4 import sign_request
from fffs.objects.stores import StoreSettings

DEADLINE: Final = 60.0
"""Seconds of failures after which a request is given up."""

SILENCE: Final = 5.0
"""Seconds without an answer after which the first request to a store is given up: its address is wrong."""

_LONGEST: Final = 64 << 20  # bytes of an object whose end is wanted, if a store returns all of it
_IDLE: Final = 4.0  # seconds for which a connection is kept; servers keep them for five or more
_REFUSED: Final = re.compile(rb"<Error>(.*?)</Error>", re.DOTALL)
_CODE: Final = re.compile(rb"<Code>([^<]*)</Code>")
_NO_XML: Final = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def refuse_socks(settings: StoreSettings, scheme: str, bucket: str) -> None:
    """Raise UsageError if a proxy of SOCKS stands between obstore, which does not know it, and a store."""
    proxy = proxy_of(urllib.parse.urlsplit(settings.plain_url(scheme, bucket, "k")), os.environ)
    if proxy and proxy.scheme.startswith("socks"):
        raise UsageError(
            "through a proxy of SOCKS, objects are only read; with SOCKS 5 and keys that are not those of a role, S3 "
            "is also listed and written to; name a proxy of HTTP (https_proxy), or none (no_proxy)"
        )


class S3Requests:
    """Requests to one bucket. Thread-safe. ``StoreSettings.make`` must have been called for it."""

    def __init__(self, settings: StoreSettings, bucket: str) -> None:
        self._settings, self._bucket = settings, bucket
        self._lock = threading.Lock()
        self._idle: list[tuple[float, Sender]] = []  # connections, and when they were used last

    @property
    def are_possible(self) -> bool:
        """Whether there are keys, or none are wanted, and no proxy of another kind. Only obstore gets the keys of a
        role, and goes through proxies of HTTPS.

        Raises UsageError, AccessError.
        """
        url = urllib.parse.urlsplit(self._settings.plain_url("s3", self._bucket, "k"))
        if not can_use(proxy_of(url, os.environ)):
            return False
        return self._settings.is_anonymous("s3") or self._settings.s3_keys() is not None

    def sign(self, method: str, key: str, query: Mapping[str, str]) -> str:
        """Return the URL of a request. key: that of an object, or "" for the bucket. Raises UsageError, AccessError."""
        url = self._settings.plain_url("s3", self._bucket, key or "k")
        if not key:
            url = url.removesuffix("k")
            url = url.removesuffix("/") if url.count("/") > 3 else url
        if self._settings.is_anonymous("s3"):
            return f"{url}?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote)}" if query else url
        keys = self._settings.s3_keys()
        if keys is None:
            raise AccessError("the credentials that this work began with are gone")
        return sign_request(keys, method, url, query)

    def send(
        self,
        method: str,
        key: str,
        query: Mapping[str, str],
        deadline: float = DEADLINE,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        silence: float | None = None,
        examine: Callable[[], object] = lambda: None,
        longest: int = LONGEST,
        is_strict: bool = False,
    ) -> Reply:
        """Return the answer to a request, whatever its status. Raises NotSentError, and as ``sign``.

        deadline, silence, longest, is_strict: as for ``Sender.send``. examine: called before each attempt, unless it
            raises.
        """
        sender = self._take()

        def url() -> str:
            examine()
            return self.sign(method, key, query)

        try:
            return sender.send(method, url, body, headers, deadline, longest, silence, is_strict)
        finally:
            with self._lock:
                self._idle.append((time.monotonic(), sender))

    def _take(self) -> Sender:
        """Return what sends a request, over a connection that was used lately if there is one."""
        with self._lock:
            old = [sender for used, sender in self._idle if time.monotonic() > used + _IDLE]
            self._idle = [(used, sender) for used, sender in self._idle if sender not in old]
            found = self._idle.pop()[1] if self._idle else Sender()
        for sender in old:
            sender.close()
        return found

    def look(self, key: str, deadline: float = DEADLINE) -> str | None:
        """Return the ETag of an object, or None if there is none. Raises RuntimeError, AccessError, and as ``send``."""
        reply = self.send("HEAD", key, {}, deadline, silence=SILENCE)
        if reply.status == 404:
            return None
        if reply.status == 400:  # without a body that says which
            raise AccessError("HTTP status 400: the credentials ended, or the bucket is in another region")
        if not reply.is_good:
            raise RuntimeError(reply.describe())
        return reply.headers.get("etag", "")

    def read_end(self, key: str, count: int, deadline: float = DEADLINE) -> bytes | None:
        """Return the last bytes of an object, or None if there is none. Raises RuntimeError, and as ``send``."""
        reply = self.send("GET", key, {}, deadline, headers={"Range": f"bytes=-{count}"}, longest=_LONGEST)
        if reply.status == 404:
            return None
        if reply.status == 416:  # it is empty
            return b""
        if not 200 <= reply.status < 300:
            raise RuntimeError(reply.describe())
        return reply.body[-count:]

    def delete(self, keys: list[str], deadline: float = DEADLINE) -> None:
        """Delete at most 1,000 objects, as far as they are there. Raises RuntimeError, AccessError, and as ``send``.

        Nothing is deleted after the deadline, when the names may be those of other objects.
        """
        together = [key for key in keys if not _NO_XML.search(key)]
        for key in keys if len(together) < 2 else set(keys).difference(together):
            reply = self.send("DELETE", key, {}, deadline, is_strict=True)
            if not reply.is_good and reply.status != 404:
                raise RuntimeError(reply.describe())
        if len(together) < 2:
            return
        objects = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in together)
        body = f"<Delete><Quiet>true</Quiet>{objects}</Delete>".encode()
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"Content-MD5": digest, "Content-Type": "application/xml"}
        reply = self.send("POST", "", {"delete": ""}, deadline, body, headers, is_strict=True)
        codes = [found[1] for each in _REFUSED.findall(reply.body) if (found := _CODE.search(each))]
        if not 200 <= reply.status < 300 or b"DeleteResult" not in reply.body or set(codes) - {b"NoSuchKey"}:
            raise (AccessError if b"AccessDenied" in codes else RuntimeError)(reply.describe())
