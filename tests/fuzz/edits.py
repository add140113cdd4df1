"""Random edits of a target's seeds, which the default test run uses for a few seconds instead of a fuzzer."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator


def random_edits(seeds: Iterable[bytes], seed: int, count: int) -> Iterator[bytes]:
    """Yield inputs with one to three bytes changed, every other one also truncated; the same for the same seed."""
    chance, inputs = random.Random(seed), list(seeds)
    for _ in range(count):
        data = bytearray(chance.choice(inputs))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.choice([0, 1, 8, 128, 255, chance.randrange(256)])
        yield bytes(data[: chance.choice([len(data), chance.randrange(len(data) + 1)])])
