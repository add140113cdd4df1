"""Permutation: a shuffled range whose numbers are computed one by one, without an array of all of them."""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np

from fffs.base.numbers import Int64Array

_ROUNDS: Final = 8
_LEAST_BITS: Final = 6  # with fewer, some orders of a few samples would come more often than others
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def scattered(values: np.ndarray) -> np.ndarray:
    """Return a hash of each number of a uint64 array: the output function of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return np.asarray(values ^ (values >> np.uint64(31)))


class Permutation:
    """A pseudorandom permutation of ``range(size)``, the same for the same key everywhere and in every release.

    It is a Feistel network over the smallest power of two that is large enough. A result that is not below ``size`` is
    permuted again until it is, which keeps the whole a permutation. It takes as much memory for a billion samples as
    for ten, and a run that is resumed needs not draw what is behind it.
    """

    def __init__(self, size: int, key: str) -> None:
        bits = max((size - 1).bit_length(), _LEAST_BITS)
        self._size, self._shift = np.uint64(size), np.uint64(bits // 2)
        self._low, self._high = (np.uint64((1 << count) - 1) for count in (bits // 2, bits - bits // 2))
        self._keys = np.frombuffer(hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest(), "<u8")

    def at(self, positions: Int64Array) -> Int64Array:
        """Return the numbers at some positions, int64 as these."""
        values = self._permuted(positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self._size)
        while len(outside):
            values[outside] = self._permuted(values[outside])
            outside = outside[values[outside] >= self._size]
        return values.astype(np.int64)

    def _permuted(self, values: np.ndarray) -> np.ndarray:
        high, low = values >> self._shift, values & self._low
        for first, second in self._keys.reshape(-1, 2):
            high = high ^ (scattered(low + first) & self._high)
            low = low ^ (scattered(high + second) & self._low)
        return np.asarray(high << self._shift | low)
