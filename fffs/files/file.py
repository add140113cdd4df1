"""File: an open file that records are read from, local or not."""

from __future__ import annotations

import contextlib
import errno
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from fffs.base.importing import importing
from fffs.base.withblock import Closing
from fffs.errors import ReadError, SourceChangedError
from fffs.files.pwrite import Writable, write_at
from fffs.native import engine, ffi
from fffs.native.checksums import CHECK_CRC32, CHECK_NONE, checksum, checksum_combine

UInt8Array = npt.NDArray[np.uint8]

PIECE: Final = engine.BLOCK  # bytes per read of a record that is checked but not returned


class File(Closing, ABC):
    """An open file whose bytes do not change while it is read. Owns what it opened; close it when done.

    A subclass implements ``read_at`` and ``close``. The other methods have defaults made of these two, which a subclass
    overrides if it can do better. Thread-safe; may be used in a child of fork.

    ``name`` is the name in messages, ``size`` the size in bytes when it was opened, ``mtime_ns`` the modification time
    then in nanoseconds since 1970 (limited by ``nearest_time``), and ``device`` the number of a file system that keeps
    such times, or 0. ``descriptor`` is the descriptor of a local file, for code in C, or negative: what stands for it
    in requests.
    """

    # Bytes that ``read_checked`` asks a store for with one request; 0: as batches do. Local files ignore it.
    together: int = 0
    # Bytes per read of a record that is read in pieces.
    piece: int = PIECE

    # What identifies the bytes together with the name, also for other processes; empty: nothing does.
    tag: str = ""

    # What tells it from others of the same name and tag: a hash of where it is. Empty: the name does.
    place: str = ""

    # Whether what ``open_beside`` opens may be a page of a web server, in place of the answer that there is none.
    answers_with_pages: bool = False

    # Whether each read waits for another machine, so that it is worth the effort to begin it early.
    is_remote: bool = False

    descriptor: int = -1
    device: int = 0
    mtime_ns: int = 0

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    @abstractmethod
    def read_at(self, offset: int, dest: UInt8Array, detail: str = "") -> int:
        """Read into ``dest`` (contiguous, writable), and return the number of bytes: fewer only at the end of the file.

        Raises:
            ReadError: it cannot be read. ``detail`` says in the message which part.

        """

    @abstractmethod
    def close(self) -> None:
        """Close the file. May be called again."""

    # ------------------------------------------------------------ bytes

    def read_bytes(self, offset: int, size: int, detail: str = "") -> bytes:
        """Return ``size`` bytes at an offset, or those before the end of the file. Raises ReadError."""
        data = np.empty(max(size, 0), np.uint8)
        return data[: self.read_at(offset, data, detail)].tobytes()

    def read_checked(self, offset: int, dest: UInt8Array, crc: int | None = None) -> tuple[int, int]:
        """Fill ``dest`` from an offset, in parallel, and compare its CRC-32 unless ``crc`` is None.

        Returns:
            0 or an errno (EBADMSG: the checksum differs, ENODATA: the file ends too early), and the computed CRC-32, or
            0 if ``crc`` is None.

        """
        request = np.zeros(1, engine.REQUEST)
        request["offset"], request["length"], request["fd"] = offset, dest.nbytes, self.descriptor
        request["dest"], request["around"] = dest.ctypes.data, self.together
        if crc is not None:
            request["check"], request["expected"] = CHECK_CRC32, crc
        self.read_batch(request)
        return -int(request["status"][0]), int(request["actual"][0])

    def read_batch(self, requests: npt.NDArray[Any]) -> bool:
        """Read and check records: see ``engine.read_batch``. The default reads one after another."""
        good = True
        for k in range(len(requests)):
            status, actual = self._read_request(requests[k])
            requests["status"][k], requests["actual"][k] = status, actual
            good = good and status == 0
        return good

    def _read_request(self, request: Any) -> tuple[int, int]:
        """Read one record; return its status and checksum."""
        offset, length, address, kind = (int(request[name]) for name in ("offset", "length", "dest", "check"))
        scratch = None if address else np.empty(min(length, self.piece), np.uint8)
        crc = done = 0
        while done < length:
            size = min(length - done, self.piece)
            part = memory(address + done, size) if scratch is None else scratch[:size]
            try:
                got = self.read_at(offset + done, part)
            except ReadError as error:
                return -(error.errno or errno.EIO), 0
            if got < size:
                return -errno.ENODATA, 0
            if kind != CHECK_NONE:
                crc = checksum_combine(kind, crc, checksum(kind, part), size)
            done += size
        return (0 if kind == CHECK_NONE or crc == int(request["expected"]) else -errno.EBADMSG), crc

    def copy_to(self, target: Writable, at: int, offset: int, size: int, check: int) -> tuple[int, int]:
        """Copy bytes at an offset to the offset ``at`` of a new file.

        Returns:
            0 or -errno of reading, and the checksum of the copied bytes, of the kind ``check`` (``CHECK_*``).

        Raises:
            WriteError.

        """
        data = np.empty(size, np.uint8)
        try:
            if self.read_at(offset, data) < size:
                return -errno.ENODATA, 0
        except ReadError as error:
            return -(error.errno or errno.EIO), 0
        write_at(target, [data.data], at)
        return 0, checksum(check, data)

    def stream(self) -> io.RawIOBase:
        """Return a binary file object at the start of the file; closing it leaves this file open."""
        return FileStream(self)

    @contextlib.contextmanager
    def local(self) -> Iterator[int]:
        """Yield the descriptor of a local file with the same bytes. The default makes a copy for the block.

        Raises:
            ReadError: the file cannot be read.
            OSError: there is no room for a copy.

        """
        with importing:  # imported late: both take milliseconds, and few files are copied
            import shutil
            import tempfile
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(self.stream(), copy, PIECE)
            copy.flush()
            yield copy.fileno()

    def failure(self, status: int, detail: str = "") -> Exception:
        """Return the exception for an errno that reading returned. detail: as for ``read_at``."""
        if status == errno.ESTALE:
            return SourceChangedError(f"{self.name}: keeps changing while it is read; open it when it is complete")
        return ReadError(status, self.name, detail)

    # ------------------------------------------------------------ speed

    def prefetch(self, requests: npt.NDArray[Any]) -> None:
        """Start to read the records of a future batch. The default does nothing."""

    @property
    def access_expires(self) -> float:
        """When reading needs a new permission, as a time of ``time.monotonic()``. The default: never."""
        return math.inf

    def renew_access(self, seconds: float) -> None:
        """Renew the permission if it expires within so many seconds. Raises as opening does. The default: nothing."""

    def await_access(self) -> None:
        """Have reads whose permission is refused wait for ``renew_access``: for threads that cannot call it themselves.

        The caller must then look at ``access_refused``. The default does nothing.
        """

    @property
    def access_refused(self) -> bool:
        """Whether reads wait for ``renew_access``. The default: False."""
        return False

    def use_cache(self) -> str:
        """Keep what is read on the local disk, for this process and others, unless caches are off.

        Returns for how long it is kept, if not for others, and why; otherwise nothing, the default.
        """
        return ""

    def expect_random_reads(self) -> None:
        """Prepare for reads in random order. The default does nothing."""

    def open_direct(self) -> tuple[int, int] | None:
        """Return a descriptor for reads that bypass the page cache, owned by the file, and their alignment in bytes.

        None if there is none, the default.
        """
        return None

    # ------------------------------------------------------------ identity

    def current_size(self) -> int:
        """Return the current size, which exceeds ``size`` if the file grows. Raises ReadError."""
        return self.size

    def stamp(self) -> Any:
        """Return the stamp for ``changed``; see ``fffs.files.stamps``. Default: None, for bytes that never change."""
        return None

    def changed(self, stamp: Any) -> int:
        """Return 0 if the file has not changed since it was opened, else -errno. The default: 0."""
        return 0

    def is_replaced(self) -> bool:
        """Whether another file, or none, is known to have its name now. The default: False."""
        return False

    def is_outdated(self) -> bool:
        """As ``is_replaced``, but may ask a store, which takes a request. The default: the same."""
        return self.is_replaced()

    def is_named(self) -> bool:
        """Whether its name still leads to it; True if that cannot be determined, the default."""
        return True

    def open_beside(self, path: str) -> File | None:
        """Open a file that belongs to this one, such as its table. None if there is none, the default.

        Raises as opening does.
        """
        return None


def memory(address: int, size: int) -> UInt8Array:
    """Return the memory of a request as an array. The caller keeps it alive."""
    return np.frombuffer(ffi.buffer(ffi.cast("uint8_t *", address), size), np.uint8)


class Readable(Protocol):
    """What a FileStream reads."""

    size: int

    def read_at(self, offset: int, dest: UInt8Array, /) -> int:
        """Read into ``dest``, and return how many bytes the file had. Raises if it cannot be read."""
        ...


class FileStream(io.RawIOBase):
    """A File as a raw binary file object with a position of its own. Closing it leaves the file open."""

    def __init__(self, file: Readable) -> None:
        super().__init__()
        self._file, self._place = file, 0

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Move the position."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def tell(self) -> int:
        """Return the position."""
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        """Read at the position, and move it. Raises ReadError."""
        got = self._file.read_at(self._place, np.frombuffer(buffer, np.uint8))
        self._place += got
        return got
