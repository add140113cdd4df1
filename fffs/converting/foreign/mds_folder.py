"""Reads MDS, the format of Mosaic's streaming data sets, without its library, which would also unpickle columns.

A shard is a u32 with the number n of its samples, n + 1 u32 offsets in the shard, of which the first is that of sample
0 and the last the end, and the samples. Each begins with a u32 for the size of each column whose size is not fixed; the
bytes of all columns follow. ``index.json`` lists the shards and the columns. A shard may be compressed as a whole.
"""

from __future__ import annotations

import bisect
import errno
import json
import os
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.converting.foreign.compressed_shard import COMPRESSIONS, LARGEST, CompressedShard
from fffs.converting.foreign.items import Bytes, ForeignItems
from fffs.converting.foreign.json_file import load_object
from fffs.errors import FormatError, MetadataError, ReadError, SourceNotFoundError, UnsupportedError, UsageError
from fffs.files.file import File
from fffs.layouts.plain import digits_for
from fffs.objects.locations import names_in, open_file

INDEX: Final = "index.json"
LARGEST_INDEX: Final = 256 << 20
ENDINGS: Final = (".mds", ".mds.zstd", ".mds.gz", ".mds.bz2", ".mds.br", ".mds.snappy")
VERSION: Final = 2
READ: Final = 4 << 20  # bytes of samples, or one sample
MOST: Final = 4096  # samples
_HEAD: Final = 256  # bytes of an index in which the name of the list of shards is, after at most the version
_SHARDS: Final = b'"shards"'
NUMBERS: Final = {
    **{"int": "<q", "float16": "<e", "float32": "<f", "float64": "<d"},
    **{f"int{8 * size}": f"<{code}" for size, code in zip((1, 2, 4, 8), "bhiq", strict=True)},
    **{f"uint{8 * size}": f"<{code}" for size, code in zip((1, 2, 4, 8), "BHIQ", strict=True)},
}
AS_FILES: Final = ("bytes", "str", "jpeg", "png", "json", "str_int", "str_float", "str_decimal")
"""Encodings whose bytes are what a file of the value has."""


Shard = File | CompressedShard


class Compressed(NamedTuple):
    """How a shard is compressed. ``path``: relative to the folder. ``sizes``: of that file, and of its content."""

    path: str
    kind: str
    sizes: tuple[int, int]


class MdsShard(NamedTuple):
    """A shard. ``path``: relative to the folder. ``columns``: name, encoding, and size if it is fixed."""

    path: str
    samples: int
    columns: tuple[tuple[str, str, int | None], ...]
    compressed: Compressed | None = None

    @property
    def paths(self) -> list[str]:
        """The paths of its file, decompressed and compressed."""
        return [self.path, self.compressed.path] if self.compressed else [self.path]

    def opened(self, file: File) -> Shard:
        """Return what reads the shard from its file. Raises MetadataError, UnsupportedError."""
        if not self.compressed or os.path.basename(file.name) != os.path.basename(self.compressed.path):
            return file
        size, content = self.compressed.sizes
        if file.size != size:
            raise MetadataError(f"{file.name}: has {file.size} bytes, and not {size}, as {INDEX} lists; copy it again")
        if content > LARGEST:
            raise UnsupportedError(f"{file.name}: has more than {LARGEST >> 30} GiB when decompressed; decompress it")
        return CompressedShard(file, self.compressed.kind, content)


def is_mds(path: str, names: Sequence[str]) -> bool:
    """Return whether a folder with these names is a data set with nothing beside it. Raises ReadError."""
    others = set(names) - {INDEX}
    if INDEX not in names or not others:
        return False
    if all(name.endswith(ENDINGS) for name in others):
        return True
    # It may list shards in folders, one for each of several writers.
    listed = {name.split("/", 1)[0] for shard in _shards_of(path) or () for name in shard.paths}
    return bool(listed) and all(_shards_of(os.path.join(path, name)) == [] for name in sorted(others - listed))


def _shards_of(path: str) -> list[MdsShard] | None:
    """Return what the index of a folder lists, or None if there is none. Raises ReadError."""
    try:
        with open_file(os.path.join(path, INDEX)) as file:
            if _SHARDS in file.read_bytes(0, min(file.size, _HEAD)):  # something else is not read to its end
                return _load_index(file)
    except (FormatError, SourceNotFoundError, UsageError):  # perhaps it is no regular file
        pass
    except ReadError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
    return None


def expand_mds(path: str) -> list[str]:
    """Return the index of a folder and its shards, in order. Raises FormatError, ReadError."""
    index = os.path.join(path, INDEX)
    with open_file(index) as file:
        shards = _load_index(file)
    present: set[str] = set()
    for folder in dict.fromkeys(os.path.dirname(shard.path) for shard in shards if shard.compressed):
        present.update(os.path.join(folder, name) for name in names_in(os.path.join(path, folder)))
    return [index, *(os.path.join(path, _present(index, shard, present)) for shard in shards)]


def _present(shown: str, shard: MdsShard, present: set[str]) -> str:
    """Return the name of the file of a shard: the decompressed one if there is no other that can be read."""
    packed = shard.compressed
    if not packed or (shard.path in present and (packed.path not in present or packed.kind not in COMPRESSIONS)):
        return shard.path
    if packed.kind not in COMPRESSIONS:
        raise UnsupportedError(
            f"{shown}: shards compressed with {packed.kind!a:.20} are not read; Mosaic's "
            "StreamingDataset(remote=FOLDER, local=OTHER) decompresses what it reads into OTHER, which can be converted"
        )
    return packed.path


def _load_index(file: File) -> list[MdsShard]:
    """Return the shards that an index lists. Raises MetadataError, UnsupportedError, ReadError."""
    try:
        found = load_object(file, LARGEST_INDEX)
        if found["version"] != VERSION:
            raise UnsupportedError(f"{file.name}: MDS of version {found['version']!a:.20} is not read, only of 2")
        shards = [_shard(file.name, entry) for entry in found["shards"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, UnsupportedError | MetadataError):
            raise
        raise MetadataError(f"{file.name}: damaged, or not the index of an MDS data set") from None
    paths = [path for shard in shards for path in shard.paths]
    if len(set(paths)) < len(paths):
        raise MetadataError(f"{file.name}: lists a shard several times")
    return shards


def _shard(shown: str, entry: dict[str, Any]) -> MdsShard:
    """Return a shard of an index. Raises KeyError, TypeError, ValueError, too."""
    name, samples = entry["raw_data"]["basename"], entry["samples"]
    columns = tuple(zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True))
    if entry["format"] != "mds":
        raise UnsupportedError(f"{shown}: shards of the format {entry['format']!a:.20} are not read, only of mds")
    compressed = _compressed(entry) if entry["compression"] else None
    for path in (name, *(compressed[:1] if compressed else ())):
        if not isinstance(path, str) or {"", ".", ".."} & set(path.split("/")) or "\0" in path:
            raise MetadataError(f"{shown}: lists a shard outside of the folder ({path!a:.100})")
        os.fsencode(path)  # raises ValueError for half of a pair of surrogates
    sizes = [size for _, _, size in columns if size is not None]
    if not all(isinstance(text, str) for column in columns for text in column[:2]):
        raise TypeError
    for column in columns:
        os.fsencode(column[0])
    if not all(isinstance(number, int) and 0 <= number < 2**32 for number in (samples, *sizes)):
        raise ValueError
    return MdsShard(name, samples, columns, compressed)


def _compressed(entry: dict[str, Any]) -> Compressed:
    """Return how a shard is compressed; "zstd:7" has a level, too. Raises as ``_shard``."""
    kind, sizes = entry["compression"], (entry["zip_data"]["bytes"], entry["raw_data"]["bytes"])
    if not isinstance(kind, str) or not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise TypeError
    return Compressed(entry["zip_data"]["basename"], kind.partition(":")[0], sizes)


class MdsItems(ForeignItems):
    """Samples of MDS. A sample becomes a file for each of its columns, ``NNNNNN.COLUMN``."""

    def _load(self) -> None:
        index, *files = self.open_files
        shards = _load_index(index)
        self._shards = [(shard, shard.opened(file)) for shard, file in zip(shards, files, strict=True)]
        self._columns = self._shards[0][0].columns if self._shards else ()
        for shard, file in self._shards:
            if shard.columns != self._columns:
                raise MetadataError(f"{file.name}: has other columns than the shards before; convert it separately")

    def files(self) -> Iterator[tuple[bytes, Bytes]]:
        """As in ``ForeignItems``."""
        digits = digits_for(sum(shard.samples for shard, _ in self._shards))
        endings = [b"." + os.fsencode(name) for name, _, _ in self._columns]
        for row, cells in enumerate(self._rows()):
            for k, cell in enumerate(cells):
                yield b"%0*d%b" % (digits, row, endings[k]), self._text(k, cell)

    def _text(self, column: int, cell: memoryview) -> Bytes:
        code = NUMBERS.get(self._columns[column][1])
        if code is None:
            return cell
        if len(cell) != struct.calcsize(code):
            raise MetadataError(f"{self.shown}: a number in {self._columns[column][0]!r} has {len(cell)} bytes")
        return json.dumps(struct.unpack(code, cell)[0]).encode()

    def values(self, column: str | None) -> Iterator[Bytes]:
        """As in ``ForeignItems``."""
        chosen = self._column(column)
        return (cells[chosen] for cells in self._rows())

    def left_out(self, column: str | None, *, names: bool) -> list[str]:
        """As in ``ForeignItems``."""
        if not names:
            chosen = self._column(column)
            others = [name for k, (name, _, _) in enumerate(self._columns) if k != chosen]
            return [f"{self.shown}: the columns {', '.join(others)} are not kept"] if others else []
        encoded = [(name, kind) for name, kind, _ in self._columns if kind not in AS_FILES]
        texts = [f"{name} ({kind})" for name, kind in encoded if kind in NUMBERS]
        others = [f"{name} ({kind})" for name, kind in encoded if kind not in NUMBERS]
        lines = [f"{self.shown}: becomes text: {', '.join(texts)}"] * bool(texts)
        return [*lines, *[f"{self.shown}: stays as MDS encodes it: {', '.join(others)}"] * bool(others)]

    def _column(self, column: str | None) -> int:
        names = [name for name, _, _ in self._columns]
        if column is None and self._columns:
            binary = [k for k, (_, kind, _) in enumerate(self._columns) if kind not in NUMBERS]
            if len(binary) != 1:
                raise UsageError(
                    f"{self.shown}: choose the column that becomes records with --column: {', '.join(names)}"
                )
            return binary[0]
        if column not in names:
            raise UsageError(f"{self.shown}: has no column {column!r}; it has {', '.join(names)}")
        chosen = names.index(column)
        if self._columns[chosen][1] in NUMBERS:
            raise UsageError(
                f"{self.shown}: the column {column!r} is {self._columns[chosen][1]}, and records are bytes"
            )
        return chosen

    # ------------------------------------------------------------ shards

    def _rows(self) -> Iterator[list[memoryview]]:
        """Yield the cells of each sample."""
        for shard, file in self._shards:
            offsets, first = self._offsets(shard, file), 0
            while first < shard.samples:  # several samples at a time, because each read may be a request
                edges = offsets[first : first + MOST + 1].tolist()
                count = max(bisect.bisect_right(edges, edges[0] + READ) - 1, 1)
                data = memoryview(file.read_bytes(edges[0], edges[count] - edges[0]))
                for k in range(count):
                    if len(data) < edges[k + 1] - edges[0]:
                        raise self._damaged(file, first + k)
                    yield self._cells(data[edges[k] - edges[0] : edges[k + 1] - edges[0]], file, first + k)
                first += count

    def _offsets(self, shard: MdsShard, file: Shard) -> npt.NDArray[np.uint32]:
        """Return where the samples of a shard begin, and the end of the last one."""
        table = 4 * (shard.samples + 2)
        if table > file.size:
            raise MetadataError(
                f"{file.name}: too short for the {shard.samples} samples that {INDEX} lists; copy it again"
            )
        data = file.read_bytes(0, table).ljust(table, b"\0")  # if it shrinks meanwhile, it is damaged
        found = np.frombuffer(data, "<u4")  # no list, which takes many times as much memory
        count, offsets = found[0], found[1:]
        is_within = table <= offsets[0] and offsets[-1] <= file.size
        if count != shard.samples or not is_within or (offsets[1:] < offsets[:-1]).any():
            raise MetadataError(f"{file.name}: its table of samples is damaged, or not that of {INDEX}")
        return offsets

    def _cells(self, data: memoryview, file: Shard, number: int) -> list[memoryview]:
        variable = sum(size is None for _, _, size in self._columns)
        at = 4 * variable
        if at > len(data):
            raise self._damaged(file, number)
        sizes = iter(struct.unpack_from(f"<{variable}I", data))
        cells = []
        for _, _, fixed in self._columns:
            size = next(sizes) if fixed is None else fixed
            cells.append(data[at : at + size])
            at += size
        if at != len(data):
            raise self._damaged(file, number)
        return cells

    def _damaged(self, file: Shard, number: int) -> MetadataError:
        return MetadataError(f"{file.name}: sample {number} is damaged or truncated; copy the shard again")
