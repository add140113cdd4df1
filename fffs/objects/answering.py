"""What the store process answers: signed URLs, pages of listings, and errors without secrets."""

from __future__ import annotations

import importlib
import itertools
import re
import threading
import urllib.parse
from collections import OrderedDict
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from fffs.errors import AccessError, UsageError
from fffs.objects.protocol import Message
from fffs.objects.redacting import redact
from fffs.objects.stores import StoreSettings, environment_of_process, sign_url

PAGE: Final = 1000
_MAX_LISTINGS: Final = 64
# obstore renews temporary credentials five minutes before their end; a URL that is signed with them ends with them.
_TEMPORARY: Final = timedelta(minutes=5)
_STATUS: Final = re.compile(r"status(?: code:)? (\d{3})")
_CLOUD_METADATA: Final = ("169.254.169.254", "169.254.170.2", "metadata.google.internal", "token request")
_DENIED: Final = ("PermissionDeniedError", "UnauthenticatedError")

Entry = tuple[str, int, str]


class Answerer:
    """Answers requests, from several threads."""

    def __init__(self) -> None:
        self._settings = StoreSettings(environment_of_process())
        self._stores: dict[tuple[str, str], Any] = {}
        self._listings: OrderedDict[int, Iterator[list[Entry]]] = OrderedDict()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def secrets(self) -> list[str]:
        """Values that must not appear in a message."""
        return self._settings.secrets

    def answer(self, request: Message) -> Message:
        """Return the answer to a request. Raises what went wrong."""
        operation = request["do"]
        scheme, bucket, key = request["scheme"], request["bucket"], request["key"]
        if operation == "sign":
            return self._sign(scheme, bucket, key, request["seconds"])
        if operation == "list":
            return self._list(scheme, bucket, key, request)
        raise ValueError(f"there is no operation {operation!r}")

    def _store(self, scheme: str, bucket: str) -> Any:
        with self._lock:
            store = self._stores.get((scheme, bucket))
            if store is None:
                store = self._stores[scheme, bucket] = self._settings.make(scheme, bucket)
        return store

    # ------------------------------------------------------------ signing

    def _sign(self, scheme: str, bucket: str, key: str, seconds: int) -> Message:
        store = self._store(scheme, bucket)
        if self._settings.is_anonymous(scheme):
            return {"url": self._settings.plain_url(scheme, bucket, key), "seconds": None}
        token = self._settings.shared_token(scheme)
        if token:
            return {"url": f"{self._settings.plain_url(scheme, bucket, key)}?{token}", "seconds": seconds / 2}
        url = sign_url(store, key, seconds)
        return {"url": url, "seconds": self._valid(scheme, url, seconds)}

    def _valid(self, scheme: str, url: str, seconds: int) -> float:
        """Return after how many seconds a URL must be renewed."""
        ends = self._settings.ends
        if scheme == "s3" and ends is not None:
            left = (ends - datetime.now(timezone.utc)).total_seconds()
            return max(min(seconds, left) / 2, 0.0)
        query = urllib.parse.urlsplit(url).query
        if "X-Amz-Security-Token=" in query and not self._settings.has_static_token:
            return min(seconds, _TEMPORARY.total_seconds()) / 2
        return seconds / 2

    # ------------------------------------------------------------ listing

    def _list(self, scheme: str, bucket: str, key: str, request: Message) -> Message:
        """Return the next page of a listing: one that was begun, or a new one after a key.

        An owner that was given a new process goes on where it was, as after a listing that was dropped.
        """
        number, after = request.get("listing"), request.get("after")
        with self._lock:
            pages = self._listings.pop(number, None) if number else None
        if request.get("end"):
            return {}
        if pages is None:
            number = next(self._numbers)
            pages = self._pages(self._store(scheme, bucket), key, after, bool(request.get("delimiter")))
        page = next(pages, None)
        if page is None:
            return {"entries": [], "listing": None}
        with self._lock:
            self._listings[number or 0] = pages
            while len(self._listings) > _MAX_LISTINGS:
                self._listings.popitem(last=False)
        return {"entries": page, "listing": number}

    def _pages(self, store: Any, key: str, after: str | None, delimiter: bool) -> Iterator[list[Entry]]:
        """Yield the pages of a listing of a folder."""
        obstore = importlib.import_module("obstore")
        folder = key.rstrip("/")
        if delimiter:
            found = obstore.list_with_delimiter(store, folder or None)
            entries = [_entry(item) for item in found["objects"]]
            entries += [(f"{name}/", 0, "") for name in found["common_prefixes"]]
            entries = sorted(entry for entry in entries if after is None or entry[0] > after)
            pages: Any = (entries[start : start + PAGE] for start in range(0, len(entries), PAGE))
        else:
            stream = obstore.list(store, folder or None, offset=after, chunk_size=PAGE)
            pages = ([_entry(item) for item in page] for page in stream)
        for page in pages:
            # The marker of the folder itself is an object whose key ends in a slash, which obstore takes off.
            yield [entry for entry in page if not folder or entry[0].startswith(f"{folder}/")]


def _entry(item: Any) -> Entry:
    return item["path"], int(item["size"]), item["e_tag"] or ""


def describe(error: BaseException, secrets: list[str]) -> Message:
    """Return an error as an answer: its kind, and one line without secrets."""
    text = str(error)
    status = _STATUS.search(text.partition("\n\nDebug source")[0])
    code = status[1] if status else ""
    name = type(error).__name__
    kind = "read"
    if isinstance(error, UsageError):
        kind = "usage"
    elif (
        isinstance(error, AccessError)
        or name in _DENIED
        or code in ("401", "403")
        or any(place in text for place in _CLOUD_METADATA)
    ):
        kind = "access"
    elif isinstance(error, FileNotFoundError) or code == "404":
        kind = "missing"
    return {"error": kind, "message": redact(text, secrets) or name}
