"""Arrow tables of slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from fffs.engines.slices import SliceBatch, rows_of
from fffs.errors import UsageError

SCHEMA = pa.schema([("path", pa.large_string()), ("bytes", pa.large_binary())])


def table_of(batch: SliceBatch, decode: Any = None) -> pa.Table:
    """Return the files as columns ``path`` and ``bytes``, of which ``bytes`` is the memory of the batch itself.

    decode: called with the bytes of each file; it returns the columns of its row as a dictionary. Arrays of one
    dimension become lists.

    Raises UsageError: ``decode`` returns something else.
    """
    if decode is None:
        buffers = [None, pa.py_buffer(batch.offsets), pa.py_buffer(batch.buffer)]
        contents = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(batch.paths), buffers)
        return pa.Table.from_arrays([pa.array(batch.paths, pa.large_string()), contents], schema=SCHEMA)
    rows = rows_of(batch, decode)
    if not all(isinstance(row, dict) for row in rows):
        raise UsageError("decode must return a dictionary for each record, with the columns of its row")
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: pa.array([_plain(row.get(name)) for row in rows]) for name in names})


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
