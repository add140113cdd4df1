"""What a ``.npy`` file begins with: in front of an array's bytes it makes them a file that numpy loads."""

from __future__ import annotations

import functools
import io

import numpy as np

from fffs.granular.codecs import as_array


@functools.lru_cache(1024)
def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """The beginning of a file that holds an array in C order. dtype: as ``numpy.dtype.str`` has it."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


def dtype_of(name: str) -> np.dtype[np.generic]:
    """The dtype of that name; raises ValueError for what cannot be in a file."""
    return as_array(name, [0], b"").dtype


def encode(array: np.ndarray) -> bytes:
    """A whole file."""
    flat = np.ascontiguousarray(array).reshape(-1)
    # Joined, a large array is copied once.
    return b"".join((header(array.dtype.str, array.shape), flat.view(np.uint8)))
