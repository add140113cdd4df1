"""FsspecFile: a file of any file system that fsspec knows, read by ranges."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base.times import nearest_time
from fffs.errors import AccessError, FffsError, ReadError, SourceChangedError, SourceNotFoundError, UsageError
from fffs.files.ends import HEAD, SMALL, TAIL, Ends
from fffs.files.file import File, UInt8Array, memory
from fffs.files.fsspec_connection import Connection
from fffs.files.fsspec_info import ARCHIVE, kind_of, size_of, time_of, version_of
from fffs.files.fsspec_systems import FOLDER, HIDING, WEB, failure_of, said_by
from fffs.files.neighbours import PART, plan_requests
from fffs.native.checksums import CHECK_NONE, checksum

# Seconds before a file system that does not tell whether a file was replaced is asked again.
PAUSES: Final = (0.5, 2.0)


class FsspecFile(File):
    """A file of a file system of fsspec. Thread-safe; a child of fork connects again, and so does a lost connection.

    Each batch is one call of ``cat_ranges`` if the file system is asynchronous, otherwise one range after the other.
    """

    piece = 4 * PART

    def __init__(self, connection: Connection, name: str, secrets: Sequence[str] = ()) -> None:
        """Ask for size and version. name: for messages. secrets: texts that messages must not contain.

        Raises:
            SourceNotFoundError: there is no such file.
            UsageError: fsspec is missing, does not know the protocol, or this is a folder.
            AccessError: the file system refuses access.
            ReadError: it does not answer, or does not tell the size.

        """
        super().__init__(name, 0)
        self._connection, self._secrets = connection, secrets
        self.version: dict[str, str] = {}
        self._ends = Ends()
        self._said = ""
        with self.asking():
            info = self._info()
        if info.get("type") == "directory":
            raise UsageError(f"{name}: {FOLDER}")
        self.answers_with_pages = not self._connection.protocols.isdisjoint(WEB)
        self.version = version_of(info)
        self.mtime_ns = nearest_time(time_of(info))
        self.size = self.measure(info)

    def measure(self, info: dict[str, Any]) -> int:
        """Return the size of the file with these attributes. Raises as the class does."""
        return size_of(info, self.name)

    def close(self) -> None:
        """Forget the file. Connections belong to fsspec, which keeps them."""
        self._connection.close()

    # ------------------------------------------------------------ the file system

    def _info(self) -> dict[str, Any]:
        """Ask for the attributes, with the version of the archive: an open archive does not see others."""
        archive = self._archive_version()  # asked before the archive is opened: another one may come meanwhile
        found = self._connection.ask()
        if not isinstance(found, dict):
            raise ReadError(errno.EIO, self.name, f"its file system tells nothing of it (info is {kind_of(found)})")
        return found if archive is None else {**found, ARCHIVE: archive}

    def _archive_version(self) -> dict[str, str] | None:
        archive = self._connection.archive
        if archive is None:
            return None
        try:
            return version_of(archive.ask())
        except Exception as error:
            if not self.version or archive.is_sure:  # at opening, it is as if the file had this error
                raise
            raise OSError(f"its archive: {said_by(error, self._secrets)}") from None

    @contextlib.contextmanager
    def asking(self, detail: str = "") -> Iterator[None]:
        """Turn any exception of a file system into one of fffs."""
        try:
            yield
        except (FffsError, MemoryError):
            raise
        except Exception as error:
            raise failure_of(error, self.name, detail, self._secrets) from None  # the cause may hold a password

    # ------------------------------------------------------------ bytes

    def _fetch(self, ranges: Sequence[tuple[int, int]]) -> list[bytes | Exception]:
        """Return the bytes of ranges, or the error of each."""
        found = self._connection.cat_ranges(ranges)
        return [_as_read(data, end - begin) for data, (begin, end) in zip(found, ranges, strict=True)]

    def read_at(self, offset: int, dest: UInt8Array, detail: str = "") -> int:
        """Read a range, with several requests at a time if it is large."""
        dest = dest[: max(self.size - offset, 0)]
        if self._ends.copy(offset, dest, self.size):
            return len(dest)
        if len(dest) <= SMALL and offset + len(dest) <= HEAD:
            self._ends.head = self._read_end(0, min(HEAD, self.size), detail)
        elif len(dest) <= SMALL and offset >= self.size - TAIL:
            self._ends.tail = self._read_end(max(self.size - TAIL, 0), self.size, detail)
        if self._ends.copy(offset, dest, self.size):
            return len(dest)
        return self._read(offset, dest, detail)

    def read_checked(self, offset: int, dest: UInt8Array, crc: int | None = None) -> tuple[int, int]:
        """See ``File``."""
        return self._ends.read_checked(offset, dest, self.size, crc) or super().read_checked(offset, dest, crc)

    def _read_end(self, begin: int, end: int, detail: str) -> bytes:
        data = np.empty(end - begin, np.uint8)
        return data.tobytes() if self._read(begin, data, detail) == len(data) else b""

    def _read(self, offset: int, dest: UInt8Array, detail: str) -> int:
        end, done = offset + len(dest), 0
        ranges = [(begin, min(begin + PART, end)) for begin in range(offset, end, PART)]
        with self.asking(detail):
            for (begin, until), data in zip(ranges, self._fetch(ranges) if ranges else (), strict=True):
                if isinstance(data, Exception):
                    raise data
                dest[done : done + len(data)] = np.frombuffer(data, np.uint8)
                done += len(data)
                if len(data) != until - begin:
                    break
        return done

    def read_batch(self, requests: npt.NDArray[Any]) -> bool:
        """Read records; those that are near each other with one request."""
        small = requests["length"] <= PART
        for group in plan_requests(requests, np.flatnonzero(small)):
            try:
                found = self._fetch([(begin, end) for begin, end, _ in group])
            except Exception as error:
                found = [error] * len(group)
            for (begin, _, rows), data in zip(group, found, strict=True):
                for row in rows:
                    requests["status"][row], requests["actual"][row] = self._settle(requests[row], begin, data)
        for row in np.flatnonzero(~small).tolist():
            requests["status"][row], requests["actual"][row] = self._read_request(requests[row])
        return not requests["status"].any() or self._explain(requests)

    def _explain(self, requests: npt.NDArray[Any]) -> bool:
        """Say of damaged records that the file was replaced, if so. Returns False."""
        damaged = (requests["status"] == -errno.EBADMSG) | (requests["status"] == -errno.ENODATA)
        if damaged.any() and self._replaced() == -errno.ESTALE:
            requests["status"][damaged] = -errno.ESTALE
        return False

    def _settle(self, request: Any, begin: int, data: bytes | Exception) -> tuple[int, int]:
        """Copy a record out of bytes that begin at an offset, and return its status and checksum."""
        if isinstance(data, Exception):
            if isinstance(data, MemoryError):
                return -errno.ENOMEM, 0
            self._said = said_by(data, self._secrets)
            if isinstance(data, SourceChangedError):
                return -errno.ESTALE, 0
            return (-errno.ENOENT if isinstance(data, FileNotFoundError) else -errno.EIO), 0
        offset, length, address, kind = (int(request[name]) for name in ("offset", "length", "dest", "check"))
        record = np.frombuffer(data, np.uint8)[offset - begin : offset - begin + length]
        if len(record) < length:
            return -errno.ENODATA, 0
        crc = 0 if kind == CHECK_NONE else checksum(kind, record)
        if address:
            memory(address, length)[:] = record
        return (0 if kind == CHECK_NONE or crc == int(request["expected"]) else -errno.EBADMSG), crc

    # ------------------------------------------------------------ identity and failures

    def changed(self, stamp: Any) -> int:
        """See ``File``. -EIO, too: its file system does not tell it now, or its archive has another checksum of it.

        Formats that have checksums do not ask.
        """
        return self._replaced() or self._damaged()

    def _damaged(self) -> int:
        try:
            if not self._connection.is_damaged():
                return 0
            self._said = "its CRC-32 is not that of the archive; its bytes are damaged"
        except Exception as error:
            self._said = f"comparing it with the CRC-32 of the archive: {said_by(error, self._secrets)}"
        return -errno.EIO

    def _replaced(self) -> int:
        """Ask whether size, times and tags are those of opening. -EIO: its file system does not tell them now."""
        for pause in (*PAUSES, None):
            begin = time.monotonic()
            try:
                return 0 if version_of(self._info()) == self.version else -errno.ESTALE
            except SourceChangedError:
                return -errno.ESTALE
            except Exception as error:
                if isinstance(error, FileNotFoundError) and self._connection.is_sure:
                    return -errno.ESTALE
                self._said = f"its file system does not tell whether it was replaced: {said_by(error, self._secrets)}"
            if pause is None or time.monotonic() - begin > pause:  # it took its time
                break
            time.sleep(pause)
        return -errno.EIO

    def is_outdated(self) -> bool:
        """See ``File``. Connects again: an open archive does not see that it was replaced."""
        try:
            with self.asking():
                again = _Asked(self._connection.anew(), self.name, self._secrets)
        except FffsError as error:
            return isinstance(error, SourceNotFoundError)
        return again.version != self.version

    def open_beside(self, path: str) -> FsspecFile | None:
        """Open a file in the same folder, or one whose name begins with that of this file."""
        if path.startswith(self.name):
            find = lambda own: own + path[len(self.name) :]  # noqa: E731
        elif os.path.dirname(path) == os.path.dirname(self.name):
            find = lambda own: os.path.join(os.path.dirname(own), os.path.basename(path))  # noqa: E731
        else:
            return None
        try:
            return FsspecFile(self._connection.anew(find), path, self._secrets)
        except (SourceNotFoundError, UsageError):
            return None
        except AccessError:
            if self._connection.protocols.isdisjoint(HIDING):
                raise
            return None

    def failure(self, status: int, detail: str = "") -> Exception:
        """See ``File.failure``."""
        if status == errno.ESTALE:
            return SourceChangedError(f"{self.name}: the file was replaced while it was open; open it again")
        if status == errno.ENOENT:
            return SourceNotFoundError(f"{self.name}: there is no such file any more")
        words = self._said if status == errno.EIO else ""
        return ReadError(status, self.name, ": ".join(filter(None, (detail, words))))


class _Asked(FsspecFile):
    """A file of which the version is asked."""

    def measure(self, info: dict[str, Any]) -> int:
        """It is not read."""
        return 0


def _as_read(data: Any, size: int) -> bytes | Exception:
    """Return what a file system gave for a range of a size, or the error of what is neither its bytes nor an error.

    Fewer bytes are those before the end of the file. More are other bytes: some servers answer with the whole file.
    """
    if isinstance(data, Exception):
        return data
    if not isinstance(data, (bytes, bytearray, memoryview)):
        return OSError(f"its file system returned {kind_of(data)} in place of bytes")
    found = bytes(data)
    if len(found) > size:
        return OSError(f"its file system returned {len(found)} bytes for a range of {size}, as if it knew no ranges")
    return found
