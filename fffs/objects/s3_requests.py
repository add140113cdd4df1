"""S3Requests: requests to a bucket of S3 that obstore does not make, signed with the keys that this process has."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Final

from fffs.errors import AccessError
from fffs.objects.sending import Reply, Sender
from fffs.objects.sigv4 import sign_request
from fffs.objects.stores import StoreSettings

DEADLINE: Final = 60.0
"""Seconds of failures after which a request is given up."""


class S3Requests:
    """Requests to one bucket. Thread-safe. ``StoreSettings.make`` must have been called for it."""

    def __init__(self, settings: StoreSettings, bucket: str) -> None:
        self._settings, self._bucket = settings, bucket

    @property
    def are_possible(self) -> bool:
        """Whether there are keys, or none are wanted. Only obstore gets those of a role.

        Raises UsageError, AccessError.
        """
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
    ) -> Reply:
        """Return the answer to a request, whatever its status. Raises NotSentError, and as ``sign``."""
        sender = Sender()
        try:
            return sender.send(method, lambda: self.sign(method, key, query), body, headers, deadline)
        finally:
            sender.close()
