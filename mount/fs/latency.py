"""Latencies, counted by power of two of a nanosecond."""

from __future__ import annotations

from collections.abc import Sequence

BUCKETS = 40


def bucket(nanoseconds: int) -> int:
    """Where a latency is counted."""
    return min(max(nanoseconds, 1).bit_length() - 1, BUCKETS - 1)


def percentile(buckets: Sequence[int], percent: float) -> int | None:
    """What so many percent took at most, in nanoseconds; inside a bucket as if they were spread evenly."""
    wanted = sum(buckets) * percent / 100
    for power, count in enumerate(buckets):
        if count and wanted <= count:
            return int(2**power * (1 + wanted / count))
        wanted -= count
    return None
