"""available_memory: how much memory the page cache may take."""

from __future__ import annotations

import re
from collections.abc import Iterator

_MEMINFO, _OWN, _CGROUPS = "/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup"


def available_memory() -> int:
    """Return how many bytes can be cached before other memory is reclaimed: of the machine, or the limit of a cgroup.

    0 if the kernel does not tell.
    """
    free = re.search(r"^MemAvailable: *(\d+) kB", _read(_MEMINFO), re.MULTILINE)
    return min([int(free[1]) * 1024 if free else 0, *_left_in_cgroups()])


def _left_in_cgroups() -> Iterator[int]:
    """Yield the bytes below the limit of each cgroup of this process. Cached files count as free memory, but not those
    of a tmpfs, which can only be swapped out.
    """
    # The name of a cgroup may contain every byte but a newline: splitlines() would split it.
    for line in filter(None, _read(_OWN).split("\n")):
        number, controllers, own = line.split(":", 2)
        if number == "0":
            root, limit, statistics = _CGROUPS, "memory.max", "anon|shmem"
        elif "memory" in controllers.split(","):
            root, limit, statistics = f"{_CGROUPS}/memory", "memory.limit_in_bytes", "total_rss|total_shmem"
        else:
            continue
        # A limit applies to all cgroups below it. In a container, its own cgroup is the visible root.
        parts = [part for part in own.split("/") if part and part != ".."]
        for k in range(len(parts) + 1):
            folder = "/".join([root, *parts[:k]])
            most = _read(f"{folder}/{limit}").strip()
            if most.isdecimal():
                used = re.findall(rf"^(?:{statistics}) (\d+)", _read(f"{folder}/memory.stat"), re.MULTILINE)
                yield max(int(most) - sum(map(int, used)), 0)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            return file.read()
    except OSError:
        return ""
