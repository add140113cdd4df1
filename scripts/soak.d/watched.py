"""A mount whose daemon is watched: its memory, descriptors and log."""

from __future__ import annotations

import os
import re
from pathlib import Path
from statistics import median

import fffs.mount
from fffs.mount.options import parse
from fffs.mount.system.questions import DAEMON

HARMLESS = re.compile(r"\S+ \S+ INFO .*: (mounted .*|unmounted|SIG[A-Z]+|in use, unmounting lazily)")
PAGE = os.sysconf("SC_PAGE_SIZE")
# Growth beyond both of these is a leak: a share of the value after the warm-up, and an amount that may be chance.
SHARE, MEMORY_SLACK, DESCRIPTOR_SLACK = 0.02, 1 << 20, 2


class Watched:
    """One mount of the pack in the working folder, named after its mode."""

    def __init__(self, mode: str, work: Path, fastpath: str) -> None:
        self.mode, self.fastpath, self.path = mode, fastpath, work / mode
        self._log = work / f"{mode}.log"
        fffs.mount.mount(work / "pack.ffr", self.path, options=parse([f"fastpath={fastpath}", f"log={self._log}"]))
        self.pid = int(Path(os.fsdecode(os.fsencode(self.path) + b"/" + DAEMON)).read_bytes().split()[0])
        self._memory: list[int] = []
        self._descriptors: list[int] = []

    def sample(self, warm: bool) -> None:
        """Record memory and descriptors. Earlier samples are dropped until the daemon is warm."""
        try:
            memory = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE
            descriptors = len(os.listdir(f"/proc/{self.pid}/fd"))
        except (FileNotFoundError, ProcessLookupError):
            return  # the daemon ended, which ``end`` reports
        if not warm:
            self._memory.clear()
            self._descriptors.clear()
        self._memory.append(memory)
        self._descriptors.append(descriptors)

    def __str__(self) -> str:
        memory, descriptors = (values[-1] if values else 0 for values in (self._memory, self._descriptors))
        return f"{self.mode} {memory / 2**20:.1f} MiB, {descriptors} descriptors"

    def end(self) -> list[str]:
        """Unmount. Returns the problems."""
        alive = os.path.exists(f"/proc/{self.pid}")
        problems = [] if alive else [f"{self.mode}: its daemon ended"]
        fffs.mount.umount(self.path, lazy=True)
        problems += _growth(f"{self.mode}: memory", self._memory, MEMORY_SLACK)
        problems += _growth(f"{self.mode}: descriptors", self._descriptors, DESCRIPTOR_SLACK)
        return problems + complaints(self._log)


def _growth(name: str, values: list[int], slack: int) -> list[str]:
    """Compare the medians of the first and the last quarter, on which single samples have no influence."""
    quarter = len(values) // 4
    if not quarter:
        return []
    first, last = median(values[:quarter]), median(values[-quarter:])
    change = (last - first) / first * 100
    text = f"{name}: {first:.0f} when warm, {last:.0f} at the end ({change:+.2f} %), at most {max(values)}"
    print(f"soak: {text}")
    return [f"{text}: not flat"] if last - first > max(first * SHARE, slack) else []


def complaints(log: Path) -> list[str]:
    """Return the lines of a daemon's log that a mount without problems does not have."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [f"{log.name}: {line}" for line in lines if not HARMLESS.fullmatch(line)]
