"""Division: cuts the walk of a folder into parts of equal size, in one pass and in bounded memory.

The walk may have more names than fit into memory, and its total is known only at its end. So the places where it may be
cut are thinned while it goes on: between two that are kept lies little, compared with a part.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from fffs.packing.listing import UInt64Array
from fffs.records.index import Int64Array

PLACES: Final = 512
"""Places that are kept for each part. Twice as many are in memory, of about 300 bytes each."""
SLICE: Final = 4096  # entries that are added at a time
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
    """Names that follow each other and have no content of their own, with columns for all of them."""

    path: Callable[[int], bytes]  # called with the number of a name, from 0
    depths: Int64Array  # how many folders the name and the one before it have in common
    weights: Int64Array
    sizes: Int64Array
    digests: UInt64Array


class Division:
    """Collects names in the order of the walk. A cut never separates a folder from the first name in it."""

    def __init__(self, parts: int, places: int = 0) -> None:
        """parts: how many are wanted. places: how many are kept; 0: PLACES for each part."""
        self._parts, self._most = parts, places or parts * PLACES
        self._end = CutPlace(0, 0, b"")
        self._places: list[CutPlace] = []
        self._gap = 0  # a cut may be moved by so much

    def add_folder(self, path: bytes, weight: int, digest: int, is_first: bool) -> None:
        """Add a folder, whose content follows. is_first: it is the first name of its own folder."""
        end = self._end
        if not is_first:
            self._keep(end._replace(path=path, depth=path.count(b"/")))
        self._end = CutPlace(end.weight + weight, 0, b"", end.size, end.names + 1, end.digest + digest)

    def add(self, entries: NamedRun, is_first: bool) -> None:
        """Add names. is_first: they are the first ones of their folder."""
        for begin in range(0, len(entries.weights), SLICE):
            self._add(entries, begin, min(begin + SLICE, len(entries.weights)), is_first and begin == 0)

    def _add(self, entries: NamedRun, begin: int, stop: int, is_first: bool) -> None:
        part, end = slice(begin, stop), self._end
        weights = end.weight + np.cumsum(entries.weights[part])
        sizes = end.size + np.cumsum(entries.sizes[part])
        digests = np.cumsum(entries.digests[part])  # modulo 2**64
        chosen = self._chosen(weights)
        chosen = chosen[is_first and not chosen[0] :]
        # Lists, because Python takes several times as long for each number of an array.
        depths, ks = entries.depths[part][chosen].tolist(), chosen.tolist()
        for k, depth, weight, size, digest in zip(
            ks,
            depths,
            _before(weights, end.weight, chosen),
            _before(sizes, end.size, chosen),
            _before(digests, 0, chosen),
            strict=True,
        ):
            self._keep(CutPlace(weight, depth, entries.path(begin + k), size, end.names + k, end.digest + digest))
        names, digest = end.names + stop - begin, end.digest + int(digests[-1])
        self._end = CutPlace(int(weights[-1]), 0, b"", int(sizes[-1]), names, digest)

    def _chosen(self, ends: Int64Array) -> npt.NDArray[np.intp]:
        """Return the entries before which a cut may be: the first, and those where a multiple of the gap is reached."""
        if self._gap <= 1:
            return np.arange(len(ends))
        steps = ends // self._gap
        crossed = np.flatnonzero(steps[1:] != steps[:-1]) + 1
        chosen = np.concatenate([[0], crossed, crossed + 1])  # before and behind an entry that is heavy
        return np.unique(chosen[chosen < len(ends)])

    def _keep(self, place: CutPlace) -> None:
        self._places.append(place)
        if len(self._places) >= 2 * self._most:
            self._thin()

    # ------------------------------------------------------------ thinning

    def _thin(self) -> None:
        """Keep about half of the places at most: those of the highest folders, with no gap larger than needed."""
        places = self._places
        weights = [place.weight for place in places]
        gaps: Int64Array = np.array(weights, np.int64)
        gaps[1:] -= gaps[:-1].copy()
        self._gap = gap = _gap_of(gaps, self._most)
        kept: list[CutPlace] = []
        last = k = 0
        while k < len(places):
            stop = bisect_right(weights, last + gap, k)
            if stop == k:  # behind something heavy
                best = k
            else:
                far = max(bisect_right(weights, last + gap // 2, k), k)
                best = min(range(far, stop), key=lambda i: (places[i].depth, -i), default=stop - 1)
            kept.append(places[best])
            last, k = weights[best], best + 1
        self._places = kept

    # ------------------------------------------------------------ cutting

    def cut(self) -> list[CutPlace]:
        """Return the beginning of each part, and the end. There are fewer parts only if there are too few names."""
        start = CutPlace(0, 0, b"")
        places = [start, *self._places, self._end]
        weights = np.array([place.weight for place in places], np.int64)
        depths = np.array([place.depth for place in places], np.int64)
        return [places[k] for k in cut_at(weights, depths, min(self._parts, len(places) - 1))]


def _before(ends: npt.NDArray[Any], first: int, chosen: npt.NDArray[np.intp]) -> list[int]:
    """Return what lies before the chosen entries; before the first one lies ``first``."""
    before: list[int] = ends[chosen - 1].tolist()
    if len(chosen) and not chosen[0]:
        before[0] = first
    return before


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
