"""Histograms of latencies: one bucket per power of two of a nanosecond."""

from __future__ import annotations

from collections.abc import Sequence

BUCKETS = 40


def bucket(nanoseconds: int) -> int:
    """Return the bucket of a latency."""
    return min(max(nanoseconds, 1).bit_length() - 1, BUCKETS - 1)


def percentile(buckets: Sequence[int], percent: float) -> int | None:
    """Return the latency that so many percent do not exceed, in nanoseconds; linear inside a bucket."""
    wanted = sum(buckets) * percent / 100
    for power, count in enumerate(buckets):
        if count and wanted <= count:
            return int(2**power * (1 + wanted / count))
        wanted -= count
    return None
