"""File: an open file that records are read from, wherever its bytes are."""

from __future__ import annotations

import contextlib
import errno
import io
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.base.withblock import Closing
from fffs.errors import ReadError
from fffs.files.pwrite import Writable, write_at
from fffs.native import engine, ffi
from fffs.native.engine import CHECK_NONE

UInt8Array = npt.NDArray[np.uint8]

PIECE: Final = engine.BLOCK  # bytes of a record that is read without being kept, at a time


class File(Closing, ABC):
    """Bytes that stay the same while they are read. Owns what it opened; close it when done.

    A kind of file says how to ``read_at`` and ``close``. The other methods have defaults made of these two, which a
    kind that can do better overrides. May be used from any thread, and by a child of fork.

    ``name`` is what messages call it, ``size`` its bytes when it was opened, ``mtime_ns`` its modification time then in
    nanoseconds since 1970, and ``device`` the number of the file system for which that time means something; 0: none.
    ``descriptor`` is that of a file of this machine, for code in C; elsewhere -1.
    """

    descriptor: int = -1
    device: int = 0
    mtime_ns: int = 0

    def __init__(self, name: str, size: int) -> None:
        self.name = name
        self.size = size

    @abstractmethod
    def read_at(self, offset: int, dest: UInt8Array, detail: str = "") -> int:
        """Read into dest (contiguous, writable) from offset on; how many bytes: fewer than asked only at the end.

        Raises:
            ReadError: it cannot be read. detail: what of it, for the message.

        """

    @abstractmethod
    def close(self) -> None:
        """Close what is open. May be called again."""

    # ------------------------------------------------------------ bytes

    def read_bytes(self, offset: int, size: int, detail: str = "") -> bytes:
        """The bytes from offset on: size of them, or those up to the end. Raises ReadError."""
        data = np.empty(max(size, 0), np.uint8)
        return data[: self.read_at(offset, data, detail)].tobytes()

    def read_checked(self, offset: int, dest: UInt8Array, crc: int | None = None) -> tuple[int, int]:
        """Fill dest from offset on, in parallel, and compare its CRC-32 unless crc is None.

        Returns:
            0 or an errno (EBADMSG: the checksum differs, ENODATA: the file ends too early), and the CRC-32 that came
            out, 0 when none was asked for.

        """
        request = np.zeros(1, engine.REQUEST)
        request["offset"], request["length"], request["fd"] = offset, dest.nbytes, self.descriptor
        request["dest"] = dest.ctypes.data
        if crc is not None:
            request["check"], request["expected"] = engine.CHECK_CRC32, crc
        self.read_batch(request)
        return -int(request["status"][0]), int(request["actual"][0])

    def read_batch(self, requests: npt.NDArray[Any]) -> bool:
        """Read and check records: see ``engine.read_batch``. Here, one after another."""
        good = True
        for k in range(len(requests)):
            status, actual = self._read_request(requests[k])
            requests["status"][k], requests["actual"][k] = status, actual
            good = good and status == 0
        return good

    def _read_request(self, request: Any) -> tuple[int, int]:
        """The status and the checksum of one record."""
        offset, length, address, kind = (int(request[name]) for name in ("offset", "length", "dest", "check"))
        scratch = None if address else np.empty(min(length, PIECE), np.uint8)
        crc = done = 0
        while done < length:
            size = min(length - done, PIECE)
            part = _memory(address + done, size) if scratch is None else scratch[:size]
            try:
                got = self.read_at(offset + done, part)
            except ReadError as error:
                return -(error.errno or errno.EIO), 0
            if got < size:
                return -errno.ENODATA, 0
            if kind != CHECK_NONE:
                crc = engine.checksum_combine(kind, crc, engine.checksum(kind, part), size)
            done += size
        return (0 if kind == CHECK_NONE or crc == int(request["expected"]) else -errno.EBADMSG), crc

    def copy_to(self, target: Writable, at: int, offset: int, size: int, check: int) -> tuple[int, int]:
        """Copy bytes from offset on to a place in a new file.

        Returns:
            0 or -errno of reading, and the checksum of a kind, ``CHECK_*``, of what was copied.

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
        return 0, engine.checksum(check, data)

    def stream(self) -> io.RawIOBase:
        """Its bytes as Python's own kind of file, from the begin on; closing that leaves this open."""
        return _Stream(self)

    @contextlib.contextmanager
    def local(self) -> Iterator[int]:
        """The descriptor of a file of this machine with the same bytes. Here, of a copy, which goes with the block.

        Raises ReadError, and OSError where there is no room for a copy.
        """
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(self.stream(), copy, PIECE)
            copy.flush()
            yield copy.fileno()

    # ------------------------------------------------------------ speed

    def prefetch(self, requests: npt.NDArray[Any]) -> None:
        """Begin to read what a batch will want. Here, nothing."""

    def expect_random_reads(self) -> None:
        """Records will be read in no order. Here, that changes nothing."""

    def open_direct(self) -> tuple[int, int] | None:
        """A descriptor for reads past the page cache, the file's own, and the alignment that they need; None where
        there is none, as here.
        """
        return None

    # ------------------------------------------------------------ identity

    def current_size(self) -> int:
        """Its size now: of one that grows, more than ``size``."""
        return self.size

    def stamp(self, least: int = -1) -> Any:
        """What ``changed`` compares; see ``fffs.files.stamps``. Here, nothing: the bytes cannot change."""
        return None

    def changed(self, stamp: Any) -> int:
        """0 while the file is what it was when it was opened; else a -errno. Here, 0."""
        return 0

    def is_replaced(self) -> bool:
        """Whether another file, or none, can be seen to have its name now. Here, never."""
        return False

    def is_named(self) -> bool:
        """Whether its name still leads to it; True where that cannot be seen, as here."""
        return True

    def open_beside(self, path: str) -> File | None:
        """The file at a path that belongs to this one, such as a table of it; None where there is none, as here.

        Raises what opening raises.
        """
        return None


def _memory(address: int, size: int) -> UInt8Array:
    """Memory that a request names, as an array. The caller keeps it alive."""
    return np.frombuffer(ffi.buffer(ffi.cast("uint8_t *", address), size), np.uint8)


class _Stream(io.RawIOBase):
    """A File for code that wants a file of Python's."""

    def __init__(self, file: File) -> None:
        super().__init__()
        self._file, self._place = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._file.size}[whence]
        self._place = max(base + offset, 0)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        got = self._file.read_at(self._place, np.frombuffer(buffer, np.uint8))
        self._place += got
        return got
