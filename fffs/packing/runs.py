"""Runs: files that are copied together in one call, for packing and unpacking."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from fffs.native.engine import BLOCK

RUN = 256  # the most files in a run
RUNS = 4  # the fewest runs that a thread takes at a time


def divide(breaks: npt.NDArray[np.bool_], sizes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Return where runs begin, and the end: of files that are together about a block; a file that is larger is alone.

    Args:
        breaks: bool[n - 1], whether file k + 1 cannot be in the run of file k.
        sizes: of the n files, in bytes.

    """
    n = len(sizes)
    begins = np.zeros(n, bool)
    begins[:1] = True
    large = sizes > BLOCK
    blocks = np.cumsum(sizes) // BLOCK
    begins |= large
    begins[1:] |= breaks | large[:-1] | (blocks[1:] != blocks[:-1])
    begins[::RUN] = True
    return np.append(np.flatnonzero(begins), n)
