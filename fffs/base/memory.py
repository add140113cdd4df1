"""How much memory there is for files that are read."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MEMINFO, _OWN, _CGROUPS = "/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"


def available_memory() -> int:
    """Bytes that files could fill before something else must leave: of the machine, or fewer where a cgroup says so.

    0 where nobody tells.
    """
    free = re.search(r"^MemAvailable: *(\d+) kB", _read(_MEMINFO), re.MULTILINE)
    return min([int(free[1]) * 1024 if free else 0, *_left_in_cgroups()])


def _left_in_cgroups() -> Iterator[int]:
    """What the limit of each cgroup that we are in leaves. Files that were read count, but make way."""
    # The name of a cgroup may hold whatever else ends lines, but no newline.
    for line in filter(None, _read(_OWN).split("\n")):
        number, controllers, own = line.split(":", 2)
        if number == "0":
            root, limit, statistic = _CGROUPS, "memory.max", "anon"
        elif "memory" in controllers.split(","):
            root, limit, statistic = f"{_CGROUPS}/memory", "memory.limit_in_bytes", "total_rss"
        else:
            continue
        # A limit counts for all below it. Inside a container, its own is the root that can be seen.
        parts = [part for part in own.split("/") if part and part != ".."]
        for k in range(len(parts) + 1):
            folder = "/".join([root, *parts[:k]])
            most = _read(f"{folder}/{limit}").strip()
            if most.isdecimal():
                used = re.search(rf"^{statistic} (\d+)", _read(f"{folder}/memory.stat"), re.MULTILINE)
                yield max(int(most) - (int(used[1]) if used else 0), 0)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return file.read()
    except OSError:
        return ""
