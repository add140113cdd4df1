"""Callers' memory, seen as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.errors import UsageError


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
    if not array.flags.writeable:
        raise UsageError(f"cannot read into {type(out).__name__}: it is read-only")
    if not array.flags.c_contiguous:
        raise UsageError(f"cannot read into {type(out).__name__}: it is not contiguous")
    if array.size == 0:
        return np.empty(0, np.uint8)
    return array.reshape(-1).view(np.uint8)
