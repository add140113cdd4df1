"""readable_bytes, writable_bytes: callers' buffers as bytes, without a copy; refuse_addresses."""

from __future__ import annotations

import re
import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from fffs.errors import UsageError

_FIELD_NAME: Final = re.compile(":[^:]*:")  # in a format of PEP 3118


def is_masked(value: Any) -> bool:
    """Whether a value is a masked array of numpy.

    There are none unless ``numpy.ma`` is imported. It is not imported here: a child that is forked during an import in
    another thread would wait for its lock for ever.
    """
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def refuse_addresses(buffer: Any) -> None:
    """Raise TypeError for a masked array, and for arrays, rows and views of objects."""
    if is_masked(buffer):
        raise TypeError("the mask of a masked array would be lost; fill it")
    if isinstance(buffer, (np.ndarray, np.void)):
        has_objects = buffer.dtype.hasobject
    else:
        has_objects = isinstance(buffer, memoryview) and "O" in _FIELD_NAME.sub("", buffer.format)
    if has_objects:
        raise TypeError("an array of objects holds addresses, not contents")


def readable_bytes(buffer: Any) -> memoryview:
    """Return the bytes of a contiguous buffer, without a copy. Raises TypeError for anything else."""
    refuse_addresses(buffer)
    if isinstance(buffer, np.ndarray):
        if not buffer.flags.c_contiguous:
            raise TypeError("a record must be C-contiguous; use numpy.ascontiguousarray")
        # memoryview(buffer) fails for dates and other dtypes without a buffer format.
        buffer = buffer.reshape(-1).view(np.uint8) if buffer.nbytes else b""
    try:
        view = memoryview(buffer)
    except TypeError:
        raise TypeError(f"a record must be bytes, an array or another buffer, not {type(buffer).__name__}") from None
    if not view.c_contiguous:
        raise TypeError("a record must be C-contiguous; use numpy.ascontiguousarray")
    return view.cast("B") if view.nbytes else memoryview(b"")


def writable_bytes(out: Any) -> npt.NDArray[np.uint8]:
    """Return the memory of ``out`` as uint8[bytes], without a copy.

    Args:
        out: writable and contiguous; has the buffer protocol, or a ``numpy()`` that shares its memory, such as torch's
            tensors on the CPU.

    Raises:
        UsageError: ``out`` is something else.

    """
    try:
        array = np.asarray(memoryview(out.numpy() if hasattr(out, "numpy") else out))
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"cannot read into {type(out).__name__}: {error}") from None
    if array.dtype.hasobject:
        raise UsageError(f"cannot read into {type(out).__name__}: it holds objects, not bytes")
    if not array.flags.writeable:
        raise UsageError(f"cannot read into {type(out).__name__}: it is read-only")
    if not array.flags.c_contiguous:
        raise UsageError(f"cannot read into {type(out).__name__}: it is not contiguous")
    if array.size == 0:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)
