"""Callers' memory, seen as bytes."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.errors import UsageError


def is_masked(value: Any) -> bool:
    """Whether it is a masked array of numpy. Where ``numpy.ma`` has not been imported there are none, and nothing here
    imports it: a child that is forked while another thread does would wait for that import for ever.
    """
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def readable_bytes(buffer: Any) -> memoryview:
    """A contiguous buffer's bytes, without a copy. Raises TypeError for anything else."""
    if isinstance(buffer, np.ndarray):
        if is_masked(buffer):
            raise TypeError("a record must be bytes: the mask of a masked array would be lost; fill it")
        if buffer.dtype.hasobject:
            raise TypeError("a record must be bytes: an array of objects holds addresses, not contents")
        if not buffer.flags.c_contiguous:
            raise TypeError("a record must be C-contiguous; use numpy.ascontiguousarray")
        # Not memoryview(buffer): dates and other dtypes have no buffer format.
        buffer = buffer.reshape(-1).view(np.uint8) if buffer.nbytes else b""
    try:
        view = memoryview(buffer)
    except TypeError:
        raise TypeError(f"a record must be bytes, an array or another buffer, not {type(buffer).__name__}") from None
    if not view.c_contiguous:
        raise TypeError("a record must be C-contiguous; use numpy.ascontiguousarray")
    return view.cast("B") if view.nbytes else memoryview(b"")


def writable_bytes(out: Any) -> npt.NDArray[np.uint8]:
    """The memory of out as uint8[bytes], without a copy. It must be writable, contiguous and on this machine's side.

    Args:
        out: anything with the buffer protocol, or with a ``numpy()`` that shares its memory, as torch's tensors on the
            CPU have.

    Raises:
        UsageError: it is something else.

    """
    try:
        array = np.asarray(memoryview(out.numpy() if hasattr(out, "numpy") else out))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"cannot read into {type(out).__name__}: {error}") from None
    if array.dtype.hasobject:
        raise UsageError(f"cannot read into {type(out).__name__}: it holds objects, and not bytes")
    if not array.flags.writeable:
        raise UsageError(f"cannot read into {type(out).__name__}: it is read-only")
    if not array.flags.c_contiguous:
        raise UsageError(f"cannot read into {type(out).__name__}: it is not contiguous")
    if array.size == 0:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)
