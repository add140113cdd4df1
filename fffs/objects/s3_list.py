"""list_pages: the list of a folder of S3, of which no page is missing.

obstore takes each page that does not name the next one for the last, whatever it is: that of a store that knows only
the first version of lists, an error with status 200, the document of a proxy. What is packed from a part of a list
lacks the rest, and a folder whose list is empty may be written to. Here a list ends only with a page that says so.

Source: ListObjectsV2 and ListObjects in the API reference of Amazon S3.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as Xml
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import unquote_plus

from fffs.objects.s3_requests import SILENCE, S3Requests
from fffs.objects.sending import Reply, Sender
from fffs.objects.stores import time_of

PAGE: Final = 1000
"""Entries of a page."""

Entry = tuple[str, int, str, int]
"""Key, size, ETag with quotes, and time of modification in nanoseconds since 1970. The key of a folder ends in a slash;
the rest is then 0 and ""."""

_FOLDER: Final = (0, "", 0)
_LONGEST: Final = 16 << 20  # bytes of a page: 1,000 keys of 1,024 bytes, each written as &#xHH;, have less
_DIGITS: Final = re.compile(r"[0-9]{1,18}")  # fewer than 2**63
_FRACTION: Final = re.compile(r"\.([0-9]{1,6})[0-9]*")


@dataclass(frozen=True)
class _Page:
    """A page as the store sent it. ``next``: what the request for the next one says, or None at the end."""

    entries: list[Entry]
    next: dict[str, str] | None


def list_pages(
    requests: S3Requests, prefix: str, after: str | None, delimiter: bool, deadline: float
) -> Iterator[list[Entry]]:
    """Yield the entries of a folder in pages, in the order of the store, without empty objects that mark folders.

    Args:
        requests: what asks the store.
        prefix: "", or the key of the folder with a slash at its end.
        after: begin after this key.
        delimiter: yield what is directly in the folder. A folder in it is an entry whose key ends in a slash.
        deadline: seconds of failures after which a request is given up.

    Raises:
        RuntimeError: an answer is no page of a list, or lists come to no end. NotSentError: there is none.
        UsageError, AccessError: as ``S3Requests.sign``.

    """
    sender = Sender()
    try:
        earlier: Container[str | None] = (after,)  # a folder is listed again after its own key
        for page in _pages(_Asking(requests, sender, deadline), prefix, after, delimiter):
            found = _in_folder(page.entries, prefix, delimiter)
            entries = [entry for key, entry in found.items() if key not in earlier]
            if delimiter:  # objects and folders are two lists of a page
                entries.sort()
            earlier = found or earlier
            for start in range(0, max(len(entries), 1), PAGE):  # each page is an answer, also without entries
                yield entries[start : start + PAGE]
    finally:
        sender.close()


def _in_folder(entries: Iterable[Entry], prefix: str, delimiter: bool) -> dict[str, Entry]:
    """Return what belongs to the folder, by its key."""
    found: dict[str, Entry] = {}
    for entry in entries:
        name = entry[0].removeprefix(prefix)
        if not name or not entry[0].startswith(prefix):
            continue
        folder, slash, _ = name.partition("/")
        if name.endswith("/") and not entry[1] and not delimiter:
            continue
        shown: Entry = (f"{prefix}{folder}/", *_FOLDER) if delimiter and slash else entry
        found.setdefault(shown[0], shown)
    return found


@dataclass
class _Asking:
    """Asks a store for pages. ``silence``: see ``Sender.send``."""

    requests: S3Requests
    sender: Sender
    deadline: float
    silence: float | None = SILENCE

    def load(self, query: Mapping[str, str]) -> _Page:
        """Return a page. Raises as ``list_pages``."""
        reply = self.sender.send(
            "GET",
            lambda: self.requests.sign("GET", "", query),
            deadline=self.deadline,
            longest=_LONGEST,
            silence=self.silence,
        )
        self.silence = None
        try:
            return _parse_page(reply)
        except Xml.ParseError:
            if "encoding-type" in query:
                raise _no_page(reply) from None
            # Keys with control characters are no XML as they are, and not each store can encode the others rightly.
            return self.load({**query, "encoding-type": "url"})


def _pages(asking: _Asking, prefix: str, after: str | None, delimiter: bool) -> Iterator[_Page]:
    """Yield the pages of a list up to the one that says that it is the last."""
    what = {"prefix": prefix, "max-keys": str(PAGE), **({"delimiter": "/"} if delimiter else {})}
    # The second version of lists knows start-after, the first one marker.
    where: dict[str, str] | None = {"list-type": "2", **({"start-after": after, "marker": after} if after else {})}
    seen: set[tuple[str, str]] = set()  # where the pages begin: what the store calls it, and the first object
    while where is not None:
        page = asking.load({**what, **where})
        if page.next is not None:
            begins = {item for item in page.next.items() if item != ("list-type", "2")}
            # Stores that count keys and not folders may show a folder on several pages.
            objects = sorted(entry[0] for entry in page.entries if entry[1:] != _FOLDER)
            begins |= {("first", key) for key in objects[:1]}
            if begins & seen:
                raise RuntimeError(f"the store lists a page of {prefix or 'the bucket'} twice")
            seen |= begins
        yield page
        where = page.next


class _WithoutTypes(Xml.TreeBuilder):
    """Refuses documents that declare entities, whose text may be much longer than they are."""

    def doctype(self, *_: object) -> None:
        """Refuse a document with a type."""
        raise Xml.ParseError


def _parse_page(reply: Reply) -> _Page:
    """Return the page of an answer. Raises RuntimeError, or ParseError if it is not XML."""
    if not reply.is_good:
        raise RuntimeError(reply.describe())
    root = Xml.fromstring(reply.body, Xml.XMLParser(target=_WithoutTypes()))
    fields = {_name(child): child.text or "" for child in root}
    if _name(root) != "ListBucketResult" or fields.get("IsTruncated") not in ("true", "false"):
        raise _no_page(reply)
    decode = unquote_plus if fields.get("EncodingType") == "url" else str
    texts = [(_name(child), {_name(field): field.text or "" for field in child}) for child in root]
    try:
        entries = [_entry(field, decode(field["Key"])) for name, field in texts if name == "Contents"]
        entries += [(decode(field["Prefix"]), *_FOLDER) for name, field in texts if name == "CommonPrefixes"]
    except (KeyError, ValueError):
        raise RuntimeError("an entry of the store's list has no key, no size or no time") from None
    return _Page(entries, _next(fields, entries, decode) if fields["IsTruncated"] == "true" else None)


def _no_page(reply: Reply) -> RuntimeError:
    return RuntimeError(f"what answers sent no list: {reply.describe()}")


def _next(fields: Mapping[str, str], entries: list[Entry], decode: Callable[[str], str]) -> dict[str, str]:
    """Return what asks for the page after one. Raises RuntimeError if nothing says where that begins."""
    if token := fields.get("NextContinuationToken"):
        return {"list-type": "2", "continuation-token": token}
    marker = decode(fields.get("NextMarker", "")) or max((entry[0] for entry in entries), default="")
    if not marker:
        raise RuntimeError("the store's list goes on, and does not say where")
    return {"marker": marker}


def _entry(fields: Mapping[str, str], key: str) -> Entry:
    """Return the entry of an object. Raises KeyError, ValueError."""
    modified = time_of(_FRACTION.sub(lambda found: f".{found[1]:0<6}", fields["LastModified"]))
    if modified is None or not _DIGITS.fullmatch(fields["Size"]):
        raise ValueError
    return key, int(fields["Size"]), quoted(fields.get("ETag", "")), milliseconds(modified)


def quoted(etag: str) -> str:
    """Return an ETag as answers have it, with quotes, which some lists leave out."""
    return f'"{etag}"' if etag and not etag.endswith('"') else etag


def milliseconds(time: datetime) -> int:
    """Return a time in nanoseconds since 1970, as exact as all stores tell it."""
    return int(time.timestamp() * 1000) * 1_000_000


def _name(element: Xml.Element) -> str:
    """Return the name of an element without that of its namespace, which some stores leave out."""
    return element.tag.rpartition("}")[2]
