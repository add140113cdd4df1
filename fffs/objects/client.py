"""What fffs asks stores for: signed URLs of objects, and listings. A store process does the work.

The process belongs to the process that started it. A child of fork starts its own, because obstore does not survive a
fork. It is started with the environment of that moment; if settings of stores change later, it is replaced.
"""

from __future__ import annotations

import atexit
import hashlib
import math
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EEXIST, EIO, ETIMEDOUT
from typing import Any, Final, NamedTuple

from fffs.base.times import nearest_time
from fffs.errors import AccessError, ReadError, SourceNotFoundError, UsageError
from fffs.objects.aws_profile import profile_stamps
from fffs.objects.connection import ConnectionLostError, StoreConnection
from fffs.objects.describing import CHECK
from fffs.objects.google_files import google_stamps
from fffs.objects.http_settings import deadline
from fffs.objects.names import ObjectName, require_object
from fffs.objects.protocol import Message
from fffs.objects.redacting import redact, secrets_of

LONGEST: Final = 7 * 24 * 3600
"""The most seconds for which a URL can be signed."""

_LISTING: Final = 900.0  # seconds for a folder that obstore lists, which it reads completely before it answers
_PREFIXES: Final = ("AWS_", "GOOGLE_", "AZURE_", "SSL_CERT_")
_NAMES: Final = frozenset(
    {"HOME", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "IDENTITY_ENDPOINT", "IDENTITY_HEADER"}
)


class ListedObject(NamedTuple):
    """An object in a listing. ``mtime_ns``: nanoseconds since 1970."""

    key: str
    size: int
    etag: str
    mtime_ns: int


@dataclass(frozen=True, repr=False)
class SignedUrl:
    """A URL that gives access to an object. ``expires``: when to renew it, as a time of ``time.monotonic()``."""

    url: str
    expires: float

    def __repr__(self) -> str:
        path, mark, _ = self.url.partition("?")
        return f"SignedUrl({path + ('?…' if mark else '')!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a SignedUrl cannot be pickled, because it gives access: pickle the name, and sign again")


def sign(name: ObjectName, seconds: int = 3600) -> SignedUrl:
    """Return a URL with which an object can be read: any range of it, with any condition.

    An address of the web is returned as it is. No store is asked whether the object exists.

    Raises:
        UsageError: the name is that of a folder, a setting is wrong, or obstore is not installed.
        AccessError: there are no credentials.
        ReadError: credentials could not be fetched.

    """
    require_object(name)
    if not 1 <= seconds <= LONGEST:
        raise UsageError(f"{name.name}: a URL can be signed for 1 to {LONGEST} seconds, not {seconds}")
    if name.is_web:
        return SignedUrl(name.url, math.inf)
    begin = time.monotonic()
    answer = _ask(name, {"do": "sign", "seconds": seconds})
    return _signed(name, answer.get("url"), answer.get("seconds"), begin)


def sign_all(folder: ObjectName, keys: list[str], seconds: int = 3600) -> list[SignedUrl]:
    """Return the URLs of several objects of a bucket. Raises as ``sign``."""
    begin = time.monotonic()
    answer = _ask(folder, {"do": "sign all", "seconds": seconds, "keys": keys})
    try:
        return [_signed(folder, url, valid, begin) for url, valid in answer["urls"]]
    except (KeyError, TypeError, ValueError):
        raise _wrong_answer(folder) from None


def _signed(name: ObjectName, url: object, valid: object, begin: float) -> SignedUrl:
    if not isinstance(url, str) or not isinstance(valid, (int, float, type(None))):
        raise _wrong_answer(name)
    return SignedUrl(url, math.inf if valid is None else begin + valid)


def list_objects(prefix: ObjectName, delimiter: bool) -> Iterator[tuple[str, int, str]]:
    """Yield key, size and ETag of the objects in a folder and below, in the order of the store.

    Args:
        prefix: the folder; a key without a slash at its end counts as if it had one.
        delimiter: yield only what is directly in the folder. A folder in it is an entry without size and ETag whose
            key ends in a slash.

    Raises:
        UsageError: as ``sign``, or FFFS_DEADLINE is wrong.
        AccessError, ReadError: as ``sign``.
        SourceNotFoundError: there is no such bucket.

    """
    return ((entry.key, entry.size, entry.etag) for entry in list_entries(prefix, delimiter))


def list_entries(prefix: ObjectName, delimiter: bool = False) -> Iterator[ListedObject]:
    """Yield the objects in a folder as ``list_objects``, with their times."""
    if prefix.is_web:
        raise UsageError(f"{prefix.name}: a folder of a web server cannot be listed; name its files")
    seconds = deadline()
    patience = max(2 * seconds + 60, _LISTING if delimiter else 0)  # keys that are no XML are asked for twice
    request: Message = {"do": "list", "delimiter": delimiter, "listing": None, "after": None, "deadline": seconds}
    try:
        while True:
            answer = _ask(prefix, request, patience)
            request["listing"] = answer.get("listing")
            for entry in _entries(prefix, answer):
                yield entry
                request["after"] = entry.key
            if request["listing"] is None:
                return
    finally:
        if request["listing"] is not None:
            _drop(prefix, request)


def _entries(name: ObjectName, answer: Message) -> list[ListedObject]:
    """Return the entries of a page. Raises ReadError if it is none."""
    try:
        return [
            ListedObject(str(key), int(size), str(etag), nearest_time(int(mtime)))
            for key, size, etag, mtime in answer["entries"]
        ]
    except (KeyError, TypeError, ValueError):
        raise _wrong_answer(name) from None


def _wrong_answer(name: ObjectName) -> ReadError:
    return ReadError(EIO, name.name, "the answer of the store process makes no sense")


def _drop(prefix: ObjectName, request: Message) -> None:
    """Tell the process that nobody wants the rest of a listing, if there is still a process."""
    connection = _owner.connection
    if connection is not None:
        try:
            connection.ask({**request, "end": True, "scheme": prefix.scheme, "bucket": prefix.bucket, "key": ""})
        except (ConnectionLostError, TimeoutError):
            _owner.discard(connection)


def ask_upload(name: ObjectName, action: str, patience: float | None = None, **fields: Any) -> Message:
    """Return the answer to a request about an upload: see ``uploads``.

    Raises:
        FileExistsError: the object was to be new, and is not.
        UsageError, AccessError, ReadError, SourceNotFoundError: as ``sign`` and ``list_objects``.

    """
    seconds = deadline()
    request: Message = {"do": "upload", "action": action, "deadline": seconds, **fields}
    return _ask(name, request, patience or 2 * seconds + 60)


def _ask(name: ObjectName, request: Message, patience: float | None = None) -> Message:
    """Return the answer of the store process; a process that was killed is replaced once."""
    request = {**request, "scheme": name.scheme, "bucket": name.bucket, "key": name.key}
    for _ in range(2):
        connection = _owner.connect()
        try:
            answer = connection.ask(request, patience)
        except ConnectionLostError:
            _owner.discard(connection)
            continue
        except TimeoutError:
            _owner.discard(connection)
            raise ReadError(ETIMEDOUT, name.name, "asking the store process") from None
        except BaseException:  # an interrupt
            if request.get("action") == "spool":
                _owner.discard(connection)  # the object must not appear later
            raise
        if "error" in answer:
            raise _error(name, answer)
        return answer
    raise ReadError(EIO, name.name, "the store process was killed twice")


def _error(name: ObjectName, answer: Message) -> Exception:
    """Return the exception for an error that the process described."""
    kind, text = answer["error"], str(answer["message"])
    if kind == "exists":
        return FileExistsError(EEXIST, "exists", name.name)
    if kind == "usage":
        return UsageError(f"{name.name}: {text}")
    if kind == "access":
        return AccessError(f"{name.name}: no access: {text}")
    if kind == "missing":
        return SourceNotFoundError(f"{name.name}: there is no such bucket or object ({text})")
    return ReadError(int(answer["errno"]), name.name, text)


def access_error(name: ObjectName, detail: str) -> AccessError:
    """Return the exception for an object whose store refused access, with what to do."""
    said = redact(detail, secrets_of(os.environ)).rstrip(".")
    advice = CHECK.get(name.scheme, "the server wants credentials that the URL does not have")
    return AccessError(f"{name.name}: no access: {said}; {advice}")


# ------------------------------------------------------------ the process of this process


def _fingerprint() -> bytes:
    """Return what changes when settings of stores change: a hash of variables and of the state of files."""
    environment = os.environ
    variables = {
        key: value for key, value in environment.items() if key.upper().startswith(_PREFIXES) or key.upper() in _NAMES
    }
    state = sorted(variables.items()), profile_stamps(environment), google_stamps(environment)
    return hashlib.sha256(repr(state).encode(errors="surrogateescape")).digest()


class _Owner:
    """Owns the store process of this process, if there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fingerprint = b""
        self.connection: StoreConnection | None = None

    def connect(self) -> StoreConnection:
        """Return a store process for the current settings. Raises UsageError, ReadError."""
        fingerprint = _fingerprint()
        with self._lock:
            if self.connection is not None and fingerprint != self._fingerprint:
                self._end()
            if self.connection is None:
                self.connection = StoreConnection(os.environ)
                self._fingerprint = fingerprint
            return self.connection

    def discard(self, connection: StoreConnection) -> None:
        """End a process that does not answer, unless another thread has replaced it."""
        with self._lock:
            if self.connection is connection:
                self._end()

    def end(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.end()

    def after_fork_in_child(self) -> None:
        """Forget the parent's process. Another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.abandon()


_owner: Final = _Owner()
os.register_at_fork(after_in_child=_owner.after_fork_in_child)
atexit.register(_owner.end)
