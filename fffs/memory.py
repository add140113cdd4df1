"""How much memory there is for files that are read."""

from __future__ import annotations

import os
import re

_MEMINFO, _OWN, _CGROUPS = "/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"


def available_memory() -> int:
    """Bytes that files could fill before something else must leave: of the machine, or fewer where a cgroup says so."""
    with open(_MEMINFO, encoding="ascii") as lines:
        free = re.search(r"^MemAvailable: *(\d+) kB", lines.read(), re.MULTILINE)
    found = [int(free[1]) * 1024] if free else [0]
    with open(_OWN, encoding="utf-8", errors="surrogateescape") as lines:
        own = next((line[4:].strip() for line in lines if line.startswith("0::/")), None)
    if own is not None:
        # A limit counts for all below it. Inside a container, its own is the root that can be seen.
        parts = [part for part in own.split("/") if part and part != ".."]
        folders = ["/".join([_CGROUPS, *parts[:k]]) for k in range(len(parts) + 1)]
        found += [limit for folder in folders if (limit := _limit(folder)) is not None]
    return min(found)


def _limit(folder: str) -> int | None:
    """What a cgroup may use; files that were read count, and leave when something else needs the memory."""
    try:
        with open(os.path.join(folder, "memory.max"), encoding="ascii") as file:
            text = file.read().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
