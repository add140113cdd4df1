"""Headers of ``.npy`` files. Header and data of an array make a file that numpy loads."""

from __future__ import annotations

import functools
import io

import numpy as np

from fffs.granular.codecs import as_array


@functools.lru_cache(1024)
def header(dtype: str, shape: tuple[int, ...]) -> bytes:
    """Return the header for an array in C order. dtype: as in ``numpy.dtype.str``."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": dtype, "fortran_order": False, "shape": shape})
    return out.getvalue()


def dtype_of(name: str) -> np.dtype[np.generic]:
    """Return the dtype of that name. Raises ValueError if arrays of it cannot be in a file."""
    return as_array(name, [0], b"").dtype


def encode(array: np.ndarray) -> bytes:
    """Return the whole file of an array."""
    flat = np.ascontiguousarray(array).reshape(-1)
    # join copies a large array only once.
    return b"".join((header(array.dtype.str, array.shape), flat.view(np.uint8)))
