"""What the store process answers: signed URLs, pages of listings, what uploads need, and errors without secrets."""

from __future__ import annotations

import functools
import importlib
import re
import secrets
import threading
import urllib.parse
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from fffs.errors import AccessError, UsageError
from fffs.objects.lasting import LastingStore
from fffs.objects.protocol import Message
from fffs.objects.s3_list import PAGE, Entry, list_pages, milliseconds, quoted
from fffs.objects.s3_requests import DEADLINE, S3Requests, refuse_socks
from fffs.objects.stores import StoreSettings, sign_url, take_environment, time_of
from fffs.objects.uploads import Uploads

_LONE_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_MAX_LISTINGS: Final = 64
_MAX_HELD: Final = 10_000  # entries that are held until it is known whether an empty object marks a folder
# obstore renews temporary credentials five minutes before their end; a URL that is signed with them ends with them.
_TEMPORARY: Final = timedelta(minutes=5)


class Answerer:
    """Answers requests, from several threads."""

    def __init__(self) -> None:
        self._settings = StoreSettings(take_environment())
        self._stores: dict[tuple[str, str], LastingStore] = {}
        self._listings: OrderedDict[str, Iterator[list[Entry]]] = OrderedDict()
        self._uploads: dict[tuple[str, str], Uploads] = {}
        self._lock = threading.Lock()

    @property
    def secrets(self) -> list[str]:
        """Values that must not appear in a message."""
        return self._settings.secrets

    def answer(self, request: Message) -> Message:
        """Return the answer to a request. Raises what went wrong."""
        operation = request["do"]
        scheme, bucket, key = request["scheme"], request["bucket"], request["key"]
        if operation in ("sign", "sign all"):
            # Once for all keys: each time it may wait for a service of credentials that does not answer.
            store = self._store(scheme, bucket).get()
            keys = [key] if operation == "sign" else request["keys"]
            signed = [self._sign(store, scheme, bucket, each, request["seconds"]) for each in keys]
            if operation == "sign":
                return signed[0]
            return {"urls": [[entry["url"], entry["seconds"]] for entry in signed]}
        if operation == "list":
            return self._list(request)
        if operation == "upload":
            return self._find_uploads(scheme, bucket).answer(request)
        raise ValueError(f"there is no operation {operation!r}")

    def _store(self, scheme: str, bucket: str) -> LastingStore:
        with self._lock:
            store = self._stores.get((scheme, bucket))
            if store is None:
                store = LastingStore(functools.partial(self._settings.make, scheme, bucket))
                store.get()  # which reads the profile, also for what is made for uploads
                self._stores[scheme, bucket] = store
        return store

    def abort_uploads(self) -> None:
        """Abort all uploads that were begun and not completed."""
        for each in self._all_uploads():
            each.abort_all()

    def stop_spools(self) -> None:
        """Abort what another process could not complete."""
        for each in self._all_uploads():
            each.stop_spools()

    def _all_uploads(self) -> list[Uploads]:
        with self._lock:
            return list(self._uploads.values())

    def _find_uploads(self, scheme: str, bucket: str) -> Uploads:
        store = self._store(scheme, bucket)
        with self._lock:
            found = self._uploads.get((scheme, bucket))
            if found is None:
                found = self._uploads[scheme, bucket] = Uploads(self._settings, store, scheme, bucket)
        return found

    # ------------------------------------------------------------ signing

    def _sign(self, store: Any, scheme: str, bucket: str, key: str, seconds: int) -> Message:
        if self._settings.is_anonymous(scheme):
            return {"url": _exact(self._settings.plain_url(scheme, bucket, key), key), "seconds": None}
        if scheme == "az":
            return self._sign_azure(store, bucket, key, seconds)
        url = _exact(sign_url(store, key, seconds), key)
        return {"url": url, "seconds": self._valid(scheme, url, seconds)}

    def _sign_azure(self, store: Any, bucket: str, key: str, seconds: int) -> Message:
        query = self._settings.azure_query(bucket, key, seconds)
        if query:
            url = _exact(self._settings.plain_url("az", bucket, key), key)
            end = urllib.parse.parse_qs(query).get("se", [""])[0]
            return {"url": f"{url}?{query}", "seconds": _half(seconds, time_of(end))}
        url = sign_url(store, key, seconds)
        if "%" in urllib.parse.urlsplit(url).path:  # see azure_sas
            raise UsageError("a key with such characters needs AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN")
        return {"url": url, "seconds": seconds / 2}

    def _valid(self, scheme: str, url: str, seconds: int) -> float:
        """Return after how many seconds a URL must be renewed."""
        if scheme == "s3" and self._settings.ends:
            return _half(seconds, self._settings.ends)
        query = urllib.parse.urlsplit(url).query
        if "X-Amz-Security-Token=" in query and not self._settings.has_static_token:
            return min(seconds, _TEMPORARY.total_seconds()) / 2
        return seconds / 2

    # ------------------------------------------------------------ listing

    def _list(self, request: Message) -> Message:
        """Return the next page of a listing: one that was begun, or a new one after a key.

        An owner that was given a new process goes on where it was, as after a listing that was dropped. A child of fork
        may ask for a listing of its parent's process, so that their names are not just numbers.
        """
        number = request.get("listing") or secrets.token_hex()
        with self._lock:
            pages = self._listings.pop(number, None)
        if request.get("end"):
            return {}
        if pages is None:
            pages = self._pages(request)
        page = next(pages, None)
        if page is None:
            return {"entries": [], "listing": None}
        with self._lock:
            self._listings[number] = pages
            while len(self._listings) > _MAX_LISTINGS:
                self._listings.popitem(last=False)
        return {"entries": page, "listing": number}

    def _pages(self, request: Message) -> Iterator[list[Entry]]:
        """Return the pages of a listing of a folder."""
        scheme, bucket = request["scheme"], request["bucket"]
        after, delimiter = request.get("after"), bool(request.get("delimiter"))
        store, folder = self._store(scheme, bucket).get(), request["key"].rstrip("/")
        if scheme == "s3" and (requests := S3Requests(self._settings, bucket)).are_possible:
            prefix, deadline = f"{folder}/" if folder else "", float(request.get("deadline", DEADLINE))
            return _without_markers(list_pages(requests, prefix, after, delimiter, deadline))
        refuse_socks(self._settings, scheme, bucket)
        return _pages_of_obstore(store, folder, after, delimiter)


def _pages_of_obstore(store: Any, folder: str, after: str | None, delimiter: bool) -> Iterator[list[Entry]]:
    """Yield the pages of a listing of Google's and Azure's stores, and of S3 with the keys of a role."""
    obstore = importlib.import_module("obstore")
    if delimiter:
        found = obstore.list_with_delimiter(store, folder or None)
        entries = [entry_of(item) for item in found["objects"]]
        entries += [(f"{name}/", 0, "", 0) for name in found["common_prefixes"]]
        entries = sorted(entry for entry in entries if after is None or entry[0] > after)
        pages: Any = (entries[start : start + PAGE] for start in range(0, len(entries), PAGE))
    else:
        stream = obstore.list(store, folder or None, offset=after, chunk_size=PAGE)
        pages = ([entry_of(item) for item in page] for page in stream)
    for page in _without_markers(pages):
        yield [entry for entry in page if not folder or entry[0].startswith(f"{folder}/")]


def entry_of(item: Any) -> Entry:
    """Return the entry of an object that obstore lists."""
    return item["path"], int(item["size"]), quoted(item["e_tag"] or ""), milliseconds(item["last_modified"])


def _half(seconds: float, ends: datetime | None) -> float:
    """Return half of the time for which a URL is valid. Raises AccessError if its credentials have ended."""
    if ends is None:
        return seconds / 2
    left = (ends - datetime.now(timezone.utc)).total_seconds()
    if left <= 0:
        raise AccessError(f"the credentials ended at {ends.isoformat()}; renew them")
    return min(seconds, left) / 2


def _exact(url: str, key: str) -> str:
    """Return the URL of an object. Raises UsageError if a server would take it for that of another one.

    obstore does not encode all characters of keys for Google Cloud Storage.
    """
    path = urllib.parse.urlsplit(url).path
    if _LONE_PERCENT.search(path) or not urllib.parse.unquote(path, errors="strict").endswith(f"/{key}"):
        raise UsageError("a key with such characters is not supported in this store")
    return url


def _without_markers(pages: Iterable[list[Entry]]) -> Iterator[list[Entry]]:
    """Leave out empty objects that some programs store for each folder.

    The key of most ends in a slash, which obstore takes off. What is in the folder then follows its marker, behind keys
    such as ``a-b`` and ``a.txt``, which sort before ``a/``.
    """
    held: list[Entry | None] = []  # from the first one on that may be a marker
    open_at: list[int] = []  # where in them are those that may be
    for page in pages:
        for entry in page:
            while open_at and (marker := held[open_at[-1]]) and entry[0] >= f"{marker[0]}/":
                if entry[0].startswith(f"{marker[0]}/"):
                    held[open_at[-1]] = None
                open_at.pop()
            if not entry[1]:
                open_at.append(len(held))
            held.append(entry)
        if not open_at or len(held) > _MAX_HELD:
            yield from _in_pages(held)
            held, open_at = [], []
        else:
            yield []  # who waits knows that the list goes on
    yield from _in_pages(held)


def _in_pages(held: list[Entry | None]) -> Iterator[list[Entry]]:
    left = [entry for entry in held if entry]
    return (left[start : start + PAGE] for start in range(0, max(len(left), 1), PAGE))
