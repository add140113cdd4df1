"""The sources of samples of granular 0.24: functions of a step, which shuffle, repeat and mix data sets.

The same seeds give the same order as granular's, but for ``Epochs``, whose seed counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.random import default_rng

Source = Callable[[int], Any]


def convert(source: Any) -> Source:
    """Return a function of a step: the source itself if it is one, or its items. Raises TypeError."""
    if callable(source):
        return source  # type: ignore[no-any-return]
    if hasattr(source, "__getitem__"):
        return source.__getitem__  # type: ignore[no-any-return]
    raise TypeError(f"a source is a function of a step, or has items; {type(source).__name__} is neither")


class Transform:
    """Applies ``fn(sample, seed=[seed, step])`` to each sample."""

    def __init__(self, source: Any, fn: Callable[..., Any], seed: int = 0) -> None:
        self.source, self.fn, self.seed = convert(source), fn, seed

    def __call__(self, step: int) -> Any:
        """Return the sample of a step."""
        return self.fn(self.source(step), seed=[self.seed, step])


class Sample:
    """Draws samples with replacement. length: how many there are; None: the length of the source."""

    def __init__(self, source: Any, length: int | None = None, seed: int = 0) -> None:
        self.length = length or len(source)
        self.source, self.seed = convert(source), seed

    def __call__(self, step: int) -> Any:
        """Return the sample of a step."""
        return self.source(int(default_rng([self.seed, step]).choice(self.length)))


class Epochs:
    """Goes through all samples again and again, in a new order each time if ``shuffle``. length: as for Sample."""

    def __init__(self, source: Any, length: int | None = None, shuffle: bool = True, seed: int = 0) -> None:
        self.length = length or len(source)
        self.source, self.shuffle, self.seed = convert(source), shuffle, seed
        self._order: tuple[int, np.ndarray] | None = None

    def __call__(self, step: int) -> Any:
        """Return the sample of a step."""
        epoch, index = divmod(step, self.length)
        return self.source(int(self._permutation(epoch)[index]) if self.shuffle else index)

    def _permutation(self, epoch: int) -> np.ndarray:
        order = self._order
        if order is None or order[0] != epoch:
            order = epoch, default_rng([self.seed, epoch]).permutation(np.arange(self.length))
            self._order = order  # in one step: other threads may be in another epoch
        return order[1]


class Truncate:
    """Goes through the first ``limit`` samples again and again. length: as for Sample."""

    def __init__(self, source: Any, limit: int, length: int | None = None) -> None:
        self.limit = min(length or len(source), limit)
        self.source = convert(source)

    def __call__(self, step: int) -> Any:
        """Return the sample of a step."""
        return self.source(step % self.limit)


class Interleave:
    """Takes turns with several sources."""

    def __init__(self, sources: Sequence[Any]) -> None:
        self.sources = [convert(source) for source in sources]

    def __call__(self, step: int) -> Any:
        """Return the sample of a step."""
        turn, which = divmod(step, len(self.sources))
        return self.sources[which](turn)


class Mix:
    """Chooses a source at random for each step, with probabilities in the ratio of the weights."""

    def __init__(self, sources: Sequence[Any], weights: Sequence[float], seed: int = 0) -> None:
        self.sources = [convert(source) for source in sources]
        shares = np.asarray(weights, np.float32)
        self.weights, self.seed = shares / shares.sum(), seed

    def __call__(self, step: int) -> Any:
        """Return the sample of a step."""
        chosen = default_rng([self.seed, step]).choice(len(self.sources), p=self.weights)
        return self.sources[int(chosen)](step)
