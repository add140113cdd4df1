"""CRC-32 with each set of registers that this processor has, against zlib's."""

from __future__ import annotations

import random
import zlib

import pytest
from inside import crc32, crc32_combine

DATA = random.Random(32).randbytes(3 << 20)


@pytest.mark.parametrize("align", [0, 1, 7, 16, 33, 63])
def test_every_length_over_the_widest_loops(align: int) -> None:
    view = memoryview(DATA)
    for length in range(1300):
        part = view[align : align + length]
        assert crc32(part) == zlib.crc32(part), length


@pytest.mark.parametrize("length", [4095, 4096, 4097, 65_535, 112 * 1024, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_long_ones(length: int) -> None:
    assert crc32(DATA[:length]) == zlib.crc32(DATA[:length])


def test_continued_at_any_place() -> None:
    generator = random.Random(1)
    for _ in range(500):
        a, b = sorted(generator.randrange(20_000) for _ in range(2))
        head, tail = DATA[:a], DATA[a:b]
        expected = zlib.crc32(DATA[:b])
        assert crc32(tail, crc32(head)) == expected
        assert crc32_combine(crc32(head), crc32(tail), len(tail)) == expected


def test_every_bit_matters_at_every_place_of_a_stride() -> None:
    data = bytearray(DATA[:1500])
    right = crc32(data)
    seen = {right}
    for bit in range(0, len(data) * 8, 5):
        data[bit // 8] ^= 1 << bit % 8
        seen.add(crc32(data))
        data[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 1 + len(range(0, len(data) * 8, 5))
