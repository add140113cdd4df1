"""RemoteFile: an object in a store, read by ranges over HTTP."""

from __future__ import annotations

import contextlib
import email.utils
import errno
import html
import os
import re
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base.cache_settings import cache_settings
from fffs.base.descriptors import describe, leaves
from fffs.base.numbers import unique
from fffs.base.times import nearest_time
from fffs.errors import AccessError, FffsError, ReadError, SourceChangedError, SourceNotFoundError
from fffs.files.ends import HEAD, SMALL, TAIL, Ends
from fffs.files.file import File, UInt8Array
from fffs.native import engine, ffi, lib
from fffs.objects import beside, client, transfer
from fffs.objects.access import Access
from fffs.objects.block_cache import BlockCache, open_cache
from fffs.objects.cache_count import count_again
from fffs.objects.cache_space import Version, place_of
from fffs.objects.names import ObjectName, parse_url
from fffs.objects.redacting import redact, secrets_of

PIECE: Final = 32 << 20  # bytes of a batch when a whole object is copied

_REASON: Final = re.compile(r"<(?:Code|Message)>([^<]{1,200})</", re.IGNORECASE)

_files: weakref.WeakValueDictionary[int, RemoteFile] = weakref.WeakValueDictionary()


class RemoteFile(File):
    """One version of an object. ``descriptor`` stands for it in requests, and is no descriptor of the system.

    Every request names the version, so that all bytes are of the version that was opened. ``etag`` identifies it, if
    the server tells one. Thread-safe; may be used in a child of fork.
    """

    # A table is one request, up to a size where several connections save more than they cost.
    together = 64 << 20
    is_remote = True

    def __init__(self, name: ObjectName, known: tuple[client.SignedUrl, int, str] | None = None) -> None:
        """Ask for the version, the size and the first bytes, unless they are known. Raises as ``open``.

        known: a signed URL, the size and the ETag, as from a listing; then nothing is asked.
        """
        super().__init__(name.name, 0)
        self._object = name
        self._access = Access(name, known[0] if known else None)
        self.place = place_of(self._access.signed.url)
        self._number = transfer.open_object(self._access.signed.url, not name.is_web)
        self.descriptor = transfer.descriptor_of(self._number)
        self._url = self._access.signed.url  # that of requests, or an older one
        self._ends = Ends()
        self._cache: BlockCache | None = None
        self._settings = cache_settings()
        self.answers_with_pages = name.is_web
        _files[self._number] = self
        try:
            self._ends.head = self._expect(known[1], known[2]) if known else self._begin()
        except BaseException:
            self.close()
            raise

    @classmethod
    def open(cls, url: str) -> RemoteFile:
        """Open an object by its URL.

        Raises:
            SourceNotFoundError: there is none.
            UsageError: the URL is not valid.
            AccessError: the store refuses access.
            ReadError: the store does not answer, or not correctly.

        """
        file = cls(parse_url(url))
        if file._settings.is_named:
            file.use_cache()
        return file

    def _expect(self, size: int, etag: str) -> bytes:
        """Set the version that is read. Returns the bytes that are known."""
        transfer.expect_version(self._number, etag, "", size)
        self.size, self.etag = size, etag
        self.tag, self._version = _strong(etag), (self.place, size, etag)
        return b""

    def _begin(self) -> bytes:
        head = np.empty(HEAD, np.uint8)
        request = np.zeros(1, engine.REQUEST)
        request["length"], request["fd"], request["dest"] = HEAD, self.descriptor, head.ctypes.data
        self.read_batch(request)
        state = transfer.state_of(self._number)
        if state.size < 0:
            raise self.failure(-int(request["status"][0]))
        self.size, self.etag = state.size, state.etag
        # The time counts only without an ETag, as in requests: servers behind one address may differ in it.
        self.tag, self._version = _strong(state.etag), (self.place, state.size, state.etag or state.modified)
        self.mtime_ns = _nanoseconds(state.modified)
        return head[: min(HEAD, self.size)].tobytes()

    def close(self) -> None:
        """Forget the object."""
        if self.descriptor == -1:
            return
        self.descriptor = -1
        _files.pop(self._number, None)
        transfer.close_object(self._number)
        if self._cache is not None:
            self._cache.close()

    # ------------------------------------------------------------ bytes

    def read_at(self, offset: int, dest: UInt8Array, detail: str = "") -> int:
        """Read a range with as many requests at a time as are useful."""
        dest = dest[: max(self.size - offset, 0)]
        if self._ends.copy(offset, dest, self.size):
            return len(dest)
        if len(dest) < SMALL and offset >= self.size - TAIL:
            tail = np.empty(self.size - max(self.size - TAIL, 0), np.uint8)
            self._fill(self.size - len(tail), tail, detail)
            self._ends.tail = tail.tobytes()
            self._ends.copy(offset, dest, self.size)
        else:
            self._fill(offset, dest, detail)
        return len(dest)

    def read_checked(self, offset: int, dest: UInt8Array, crc: int | None = None) -> tuple[int, int]:
        """See ``File``."""
        return self._ends.read_checked(offset, dest, self.size, crc) or super().read_checked(offset, dest, crc)

    def _fill(self, offset: int, dest: UInt8Array, detail: str) -> None:
        status, _ = self.read_checked(offset, dest)
        if status:
            raise self.failure(status, detail)

    # Static: a batch with records of several objects is one call into C.
    @staticmethod
    def read_batch(requests: npt.NDArray[Any]) -> bool:
        """Read records from caches or stores, and those once more that need a new signature."""
        count_again()
        numbers = transfer.numbers_of(requests["fd"])
        files = {number: file for number in unique(numbers).tolist() if (file := _files.get(number))}
        for number, file in files.items():
            if file._access.is_due and not transfer.are_cached(requests[numbers == number]):
                file._try_to_sign()
        sent = {number: file._url for number, file in files.items()}
        if transfer.read_batch(requests):
            return True
        refused = requests["status"] == -errno.EACCES
        for number in unique(numbers[refused]).tolist():
            if not (number in files and files[number]._has_other_url(sent[number])):
                refused &= numbers != number
        if refused.any():
            part = requests[refused]
            transfer.read_batch(part)
            requests[refused] = part
        return not requests["status"].any()

    @staticmethod
    def prefetch(requests: npt.NDArray[Any]) -> None:
        """Start to read the records that are not in a cache; they are kept in memory until they are asked for."""
        transfer.prefetch(requests)

    @property
    def access_expires(self) -> float:
        """When the signature should be renewed."""
        return self._access.signed.expires

    def renew_access(self, seconds: float) -> None:
        """Sign again if the signature expires within so many seconds."""
        if self._access.expires_within(seconds):
            self._sign_again()

    def _sign_again(self) -> None:
        try:
            self._access.renew()
        finally:
            url = self._access.signed.url
            transfer.set_url(self._number, url)  # requests may wait for it
            self._url = url

    def _try_to_sign(self) -> None:
        """Sign again, unless that has just failed. ``failure`` tells why it fails."""
        if not self._access.has_just_failed:
            with contextlib.suppress(FffsError):
                self._sign_again()

    def _has_other_url(self, refused: str) -> bool:
        """Return whether there is another signed URL than one that was refused, by another thread or now."""
        if self._url == refused:
            self._try_to_sign()
        return self._url != refused

    def await_access(self) -> None:
        """See ``File``."""
        transfer.set_renewable(self._number)

    @property
    def access_refused(self) -> bool:
        """Whether reads wait for another signature."""
        return self.descriptor != -1 and transfer.is_refused(self._number)

    def use_cache(self) -> str:
        """See ``File``. The settings are those of the moment at which the object was opened."""
        if self._cache is None and self.size and not self._settings.is_off:
            try:
                version = Version(self.name, self.etag, self.size, self.place)
                cache = open_cache(version, self._settings)
                if not leaves(cache.map, int(lib.FFFS_HTTP_CONNECTIONS)):  # without connections nothing could be read
                    cache.close()
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            except OSError as error:
                return f"not at all: {describe(error)}"
            self._cache = cache
            transfer.use_cache(self._number, cache.data, cache.map, cache.limit, cache.keep_free)
        why = "" if self._cache is None else self._cache.why_private
        return why and f"only while this process runs: {why}"

    @contextlib.contextmanager
    def local(self) -> Iterator[int]:
        """Yield the descriptor of a copy, for the block."""
        with tempfile.TemporaryFile() as copy:
            buffer = engine.take(min(PIECE, max(self.size, 1)))
            for offset in range(0, self.size, PIECE):
                copy.write(buffer[: self.read_at(offset, buffer)].data)
            copy.flush()
            yield copy.fileno()

    # ------------------------------------------------------------ identity and failures

    def open_beside(self, path: str) -> RemoteFile | None:
        """Open another object by its URL; None if there is none. A URL with a query leads to one object only."""
        if self._object.is_web and "?" in self._object.key:
            return None
        try:
            return RemoteFile.open(path)
        except FffsError as error:
            if beside.means_none(error, path, self._object.is_web):
                return None
            raise

    def is_outdated(self) -> bool:
        """See ``File``. False if the store does not answer."""
        try:
            with RemoteFile(self._object) as now:
                return now._version != self._version
        except FffsError as error:
            return isinstance(error, SourceNotFoundError)

    def stamp(self) -> Any:
        """Return a stamp that is not compared: a version of an object does not change."""
        return ffi.new("fffs_stamp *")

    def failure(self, status: int, detail: str = "") -> Exception:
        """See ``File.failure``."""
        what = f"{self.name}: cannot read{f' ({detail})' if detail else ''}: "
        state = transfer.state_of(self._number) if self.descriptor != -1 else None
        said = _said(state) if state else ""
        if status == errno.ESTALE:
            return SourceChangedError(f"{self.name}: the object was replaced while it was open; open it again")
        if status == errno.ENOENT:
            return SourceNotFoundError(f"{self.name}: there is no such object")
        if status == errno.EACCES:
            advice = "check the credentials, the rights of the object, and the machine's clock"
            is_hidden = state and not self._access.refusal and beside.is_hidden(state)
            kind = beside.HiddenError if is_hidden else AccessError
            return kind(str(self._access.refusal or f"{self.name}: no access: {said}; {advice}"))
        if status == errno.EKEYREJECTED:
            name = "AWS_CA_BUNDLE" if os.environ.get("AWS_CA_BUNDLE") else "SSL_CERT_FILE"  # the first one wins
            return _RemoteError(status, f"{what}the server's certificate is not accepted: {said}; set {name}")
        if status in (errno.ENODATA, errno.EBADMSG, errno.ENOMEM, errno.ECANCELED):
            return ReadError(status, self.name, detail)
        return _RemoteError(status, f"{what}{said or os.strerror(status)}")


class _RemoteError(ReadError):
    """A ReadError with the words of a server or of libcurl."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(status, message)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.errno, self.filename)

    def __str__(self) -> str:
        return str(self.filename)


def _said(state: transfer.State) -> str:
    """Return the reason of the last failure in one line: from the XML of a store, or libcurl's words."""
    words = _REASON.findall(state.text) if state.status else [state.text]
    shown = redact(html.unescape(": ".join(words)), secrets_of(os.environ))  # a server may say what it was asked for
    if not state.status:
        return shown
    return f"HTTP status {state.status}" + (f", {shown}" if shown else "")


def _strong(etag: str) -> str:
    """Return an ETag that identifies bytes; nothing for a weak one."""
    return "" if etag.startswith("W/") else etag


def _nanoseconds(modified: str) -> int:
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return nearest_time(int(email.utils.parsedate_to_datetime(modified).timestamp()) * 10**9)
    return 0
