"""boot_id: what tells this machine, since it was started, from all others."""

from __future__ import annotations

import functools

BOOT_ID = "/proc/sys/kernel/random/boot_id"


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of the machine, or "" if the kernel does not tell."""
    try:
        with open(BOOT_ID) as file:
            return file.read().strip()
    except OSError:
        return ""
