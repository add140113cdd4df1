"""The floor, the fastest possible reader: compiles and calls floor.c."""

from __future__ import annotations

import ctypes
import os
import subprocess
from pathlib import Path

import numpy as np

from fffs import FileReader

SOURCE = Path(__file__).with_name("floor.c")


class Floor:
    """Reads records of one file as fast as the machine can."""

    def __init__(self, reader: FileReader, scratch: Path) -> None:
        library = scratch / "floor.so"
        flags = ["-std=c11", "-O3", "-shared", "-fPIC", "-pthread"]
        subprocess.run([os.environ.get("CC", "cc"), *flags, SOURCE, "-o", library, "-ldeflate"], check=True)
        self._read = ctypes.CDLL(str(library)).floor_read
        self._read.restype = ctypes.c_int64
        pointer = ctypes.c_void_p
        self._read.argtypes = [ctypes.c_int, pointer, pointer, pointer, ctypes.c_size_t, ctypes.c_int]
        self._fd = os.open(reader.fnames[0], os.O_RDONLY)
        offsets = reader.get_offsets()
        self._starts, self._lengths, self._checksums = offsets[:-1], np.diff(offsets), reader.get_checksums()

    def read(self, numbers: np.ndarray, threads: int, check: bool = True) -> None:
        """Read the records in this order. Each thread reuses one buffer."""
        arrays = [np.ascontiguousarray(a[numbers]) for a in (self._starts, self._lengths, self._checksums)]
        starts, lengths, checksums = (array.ctypes.data for array in arrays)
        bad = self._read(self._fd, starts, lengths, checksums if check else None, len(numbers), threads)
        if bad != 0:
            raise RuntimeError(f"floor.c: {bad} bad records, or (-1) no memory or threads")

    def close(self) -> None:
        os.close(self._fd)
