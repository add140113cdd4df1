"""Whether counters that a mount told are those of a daemon: anybody may have answered, and they are calculated with."""

from __future__ import annotations

from typing import Any

from fffs.mount.fs.latency import BUCKETS

MOST = 2**63
"""Counters are smaller: the native ones have 64 bits."""

_SUMS = ("requests", "retries", "errors", "fetched", "asked", "hits", "damaged_records", "damaged_blocks")
_COUNTS = ("threads", "reads", "read_bytes", "read_errors", "bad_records", "records", "verified_records")
_OPTIONAL = ("cold_reads", "reads_waiting")


def are_counters(told: dict[str, Any]) -> bool:
    """Whether all that ``Statistics.collect`` returns is there, as it returns it. Later versions may tell more."""
    objects, seconds, buckets = told.get("objects"), told.get("seconds"), told.get("read_latency_log2_ns")
    times = told.get("read_latency_ns")
    return (
        isinstance(told.get("fastpath"), bool)
        and isinstance(seconds, (int, float))
        and 0 <= seconds < MOST
        and all(map(_is_count, map(told.get, _COUNTS)))
        and all(told.get(name) is None or _is_count(told[name]) for name in _OPTIONAL)
        and all(_has_counts(told.get(side)) for side in ("native", "python"))
        and isinstance(buckets, list)
        and len(buckets) == BUCKETS
        and all(map(_is_count, buckets))
        and isinstance(times, dict)
        and all(value is None or _is_count(value) for value in times.values())
        and (not objects or (_has_counts(objects) and objects.keys() >= set(_SUMS)))
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST


def _has_counts(value: Any) -> bool:
    """Whether it is a dictionary whose values are all counts."""
    return isinstance(value, dict) and all(map(_is_count, value.values()))
