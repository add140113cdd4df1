"""Division: cuts the walk of a folder into parts of equal size, in one pass and in bounded memory.

The walk may have more names than fit into memory, and its total is known only at its end. So the places where it may be
cut are thinned while it goes on: between two that are kept lies little, compared with a part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.packing.listing import UInt64Array, WalkColumns
from fffs.records.index import Int64Array

PLACES: Final = 512
"""Places that are kept for each part. Twice as many are in memory, of about 300 bytes each."""
SLICE: Final = 4096
"""Names after which places are thinned, if there are too many: not when a run ends, which depends on time."""
TOLERANCE: Final = 0.009
"""How far a cut may lie from where it should be, as a share of a part: a part has two, so it differs by 1.8 %."""
_ROUNDS: Final = 32


class CutPlace(NamedTuple):
    """A place between two names: how much lies before it, and the path of the name behind it."""

    weight: int
    depth: int
    path: bytes
    size: int = 0  # of files, in bytes
    names: int = 0
    digest: int = 0


@dataclass(frozen=True)
class NamedRun:
    """Names that follow each other in the walk."""

    path: Callable[[int], bytes]  # called with the number of a name, from 0
    columns: WalkColumns

    def part(self, begin: int, stop: int) -> NamedRun:
        """Return the names from ``begin`` on, and before ``stop``."""
        if begin == 0 and stop >= len(self.columns.weights):
            return self
        return NamedRun(lambda k: self.path(begin + k), self.columns.part(begin, stop))


def cuts_in_folder(count: int, is_first: bool) -> npt.NDArray[np.uint8]:
    """Return the column ``cuts`` of names in one folder. is_first: the first of them is the first in it."""
    cuts = np.ones(count, np.uint8)
    cuts[:1] = not is_first
    return cuts


class Division:
    """Collects names in the order of the walk. A cut never separates a folder from the first name in it."""

    def __init__(self, parts: int, places: int = 0) -> None:
        """parts: how many are wanted. places: how many are kept; 0: PLACES for each part."""
        self._parts, self._most = parts, places or parts * PLACES
        self._end = CutPlace(0, 0, b"")
        self._places = _Places()
        self._gap = 0  # a cut may be moved by so much
        self._crossed = True  # whether the last name lies across a multiple of it

    def add_folder(self, path: bytes, weight: int, digest: int, is_first: bool) -> None:
        """Add a folder, whose content follows. is_first: it is the first name of its own folder."""
        end = self._end
        if not is_first:
            self._places.add(end._replace(path=path, depth=path.count(b"/")))
        gap = max(self._gap, 1)
        self._crossed = end.weight // gap != (end.weight + weight) // gap
        self._end = CutPlace(end.weight + weight, 0, b"", end.size, end.names + 1, end.digest + digest)
        self._thin()

    def add(self, run: NamedRun) -> None:
        """Add names."""
        begin, count = 0, len(run.columns.weights)
        while begin < count:
            stop = min(begin + SLICE - self._end.names % SLICE, count)
            self._add(run.part(begin, stop))
            begin = stop

    def _add(self, run: NamedRun) -> None:
        end, columns = self._end, run.columns
        before = _Before(_sums(columns.weights, end.weight), _sums(columns.sizes, end.size), _sums(columns.digests, 0))
        self._places.extend(run, before, self._chosen(before.weights, columns.cuts), end)
        weight, size, digest = (int(column[-1]) for column in before)
        self._end = CutPlace(weight, 0, b"", size, end.names + len(columns.weights), end.digest + digest)
        self._thin()

    def _chosen(self, before: Int64Array, cuts: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
        """Return the names before which a cut may be: folders, and those at a multiple of the gap.

        before: what lies before each name and the end.
        """
        steps = before // max(self._gap, 1)
        crossed = steps[1:] != steps[:-1]
        before_first, self._crossed = self._crossed, bool(crossed[-1])
        if self._gap <= 1:
            return np.flatnonzero(cuts)
        chosen = (cuts == 2) | crossed
        chosen[0] |= before_first
        chosen[1:] |= crossed[:-1]  # a name may be heavy: before and behind it
        return np.flatnonzero(chosen & (cuts != 0))

    def _thin(self) -> None:
        """If there are too many places, keep about half at most: those of the highest folders, with no gap larger than
        needed.
        """
        if self._end.names % SLICE or len(self._places) < 2 * self._most:
            return
        weights = np.array(self._places.weights, np.int64)
        depths = np.array(self._places.depths, np.int64)
        gaps = np.diff(weights, prepend=0)
        self._gap = _gap_of(gaps, self._most)
        self._places = self._places.only(thinned(weights, depths, self._gap).tolist())

    def cut(self) -> list[CutPlace]:
        """Return the beginning of each part, and the end. There are fewer parts only if there are too few names."""
        places = self._places
        weights = np.array([0, *places.weights, self._end.weight], np.int64)
        depths = np.array([0, *places.depths, 0], np.int64)
        cuts = cut_at(weights, depths, min(self._parts, len(places) + 1))[1:-1]
        return [CutPlace(0, 0, b""), *(places[k - 1] for k in cuts), self._end]


class _Before(NamedTuple):
    """What lies before each entry of a run; and, as a last one, before what follows the run."""

    weights: Int64Array
    sizes: Int64Array
    digests: UInt64Array


class _Places:
    """Places as columns: few of them are needed in the end, and objects would take half of the time of a plan."""

    def __init__(self) -> None:
        self.weights: list[int] = []
        self.depths: list[int] = []
        self._sizes: list[int] = []
        self._names: list[int] = []
        self._digests: list[int] = []
        self._paths: list[bytes | Callable[[int], bytes]] = []  # a function is called with the number of the entry
        self._entries: list[int] = []

    def __len__(self) -> int:
        return len(self.weights)

    def __getitem__(self, k: int) -> CutPlace:
        numbers = self.weights[k], self.depths[k], self._path(k), self._sizes[k], self._names[k], self._digests[k]
        return CutPlace(*numbers)

    def _path(self, k: int) -> bytes:
        path = self._paths[k]
        return path if isinstance(path, bytes) else path(self._entries[k])

    def add(self, place: CutPlace) -> None:
        """Add a place."""
        self.weights.append(place.weight)
        self.depths.append(place.depth)
        self._sizes.append(place.size)
        self._names.append(place.names)
        self._digests.append(place.digest)
        self._paths.append(place.path)
        self._entries.append(0)

    def extend(self, run: NamedRun, before: _Before, chosen: npt.NDArray[np.intp], end: CutPlace) -> None:
        """Add some of the entries of a run that begins at ``end``."""
        entries = chosen.tolist()
        self.weights += before.weights[chosen].tolist()
        self.depths += run.columns.depths[chosen].tolist()
        self._sizes += before.sizes[chosen].tolist()
        self._names += (chosen + end.names).tolist()
        self._digests += [end.digest + digest for digest in before.digests[chosen].tolist()]
        self._entries += entries
        # The function keeps all names of the run in memory.
        is_dense = 2 * len(entries) > len(run.columns.depths)
        self._paths += [run.path] * len(entries) if is_dense else map(run.path, entries)

    def only(self, kept: list[int]) -> _Places:
        """Return some of the places."""
        places = _Places()
        places.weights, places.depths, places._sizes, places._names, places._digests = (
            [column[k] for k in kept] for column in (self.weights, self.depths, self._sizes, self._names, self._digests)
        )
        places._paths = [self._path(k) for k in kept]
        places._entries = [0] * len(kept)
        return places


def _sums(column: npt.NDArray[Any], first: int) -> npt.NDArray[Any]:
    """Return what lies before each entry, and at the end. first: what lies before the first one."""
    sums = np.empty(len(column) + 1, column.dtype)
    sums[0] = first
    np.cumsum(column, out=sums[1:])
    sums[1:] += sums[0]
    return sums


def _gap_of(gaps: Int64Array, places: int) -> int:
    """Return the smallest gap, about, with which so many places are enough. What is heavier cannot be cut anyway."""
    gap, heavy = max(4 * int(gaps.sum()) // places, 1), 0
    for _ in range(_ROUNDS):
        light = gaps <= gap
        heavy = len(gaps) - int(light.sum())
        if heavy > places // 2:
            break
        smaller = max(4 * int(gaps[light].sum()) // (places - heavy), 1)
        if smaller >= gap:
            break
        gap = smaller
    return gap


def thinned(weights: Int64Array, depths: Int64Array, gap: int) -> npt.NDArray[np.intp]:
    """Return places with no gap between them that is larger than ``gap``, except where an entry is heavier than that.

    weights, depths: as of ``cut_at``. Of the places that are near each other, the last of those of the highest folders
    is kept.
    """
    step = max(gap // 2, 1)
    steps = weights // step
    order = np.lexsort((-np.arange(len(weights)), depths, steps))
    kept = np.zeros(len(weights), bool)
    kept[order[np.diff(steps[order], prepend=-1) != 0]] = True
    far = np.flatnonzero(np.diff(weights) > step)  # there may be no place in the step between
    kept[far] = kept[far + 1] = True
    return np.flatnonzero(kept)


def cut_at(weights: Int64Array, depths: Int64Array, parts: int) -> list[int]:
    """Return which places begin a part, and the last one.

    Args:
        weights: what lies before each place, in ascending order; the first is 0, the last the total.
        depths: a cut is made where the depth is lowest, within the tolerance.
        parts: at least 1, and at most as many as there are gaps.

    """
    cuts, base, step = [0], 0.0, _step(weights, parts)
    for k in range(1, parts):
        low, high = cuts[-1] + 1, len(weights) - 1 - (parts - k)
        wanted, room = base + step, TOLERANCE * step
        begin = max(int(np.searchsorted(weights, wanted - room, side="left")), low)
        stop = min(int(np.searchsorted(weights, wanted + room, side="right")), high + 1)
        if begin < stop:
            near = np.abs(weights[begin:stop] - wanted)
            cuts.append(begin + int(np.lexsort((near, depths[begin:stop]))[0]))
            base = wanted
            continue
        cuts.append(_nearest(weights, wanted, low, high))
        base, step = float(weights[cuts[-1]]), _step(weights[cuts[-1] :], parts - k)
    return [*cuts, len(weights) - 1]


def _nearest(weights: Int64Array, wanted: float, low: int, high: int) -> int:
    """Return the place from low to high that is nearest."""
    above = min(max(int(np.searchsorted(weights, wanted)), low), high)
    below = max(above - 1, low)
    return below if wanted - weights[below] <= weights[above] - wanted else above


def _step(weights: Int64Array, parts: int) -> float:
    """Return the size of a part, if what is heavier than that is in a part of its own."""
    gaps = np.diff(weights)
    step = float(gaps.sum()) / parts
    for _ in range(_ROUNDS):
        light = gaps <= step
        heavy = len(gaps) - int(light.sum())
        if heavy >= parts or not heavy:
            return step
        smaller = float(gaps[light].sum()) / (parts - heavy)
        if smaller >= step:
            return step
        step = smaller
    return step
