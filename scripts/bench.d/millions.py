"""``millions``: what users do with packs of 10,000,000 files of 16 bytes: time, and memory for each file.

Every command runs in a new process, with the pack in the page cache.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import data
import page_cache
from figures import Figure, Report, progress
from file_systems import FFFS

PARTS, ROUNDS = 20, 3
OPEN = "from fffs.layouts import load_source; load_source(sys.argv[1:])"
FOLDER = "import fffs.torch; fffs.torch.PackedFolder(sys.argv[1])"
COMMAND = "from fffs.cli.program import run; assert run(sys.argv[1:]) == 0"
# Printed at the end: the peak of resident memory. That of getrusage(2) begins with the memory of the parent.
CODE = r"""
import re, sys
exec(sys.argv.pop(1))
print(re.search(r"VmHWM:\s*(\d+)", open("/proc/self/status").read())[1], file=sys.stderr)
"""
GOALS = {"open": 0.15, "mount": 1.0}


def _run(*command: str) -> tuple[float, int]:
    """Return seconds, and the peak of memory in bytes if it is a command with CODE."""
    begin = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    taken = time.perf_counter() - begin
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
    return taken, int(done.stderr.split()[-1]) << 10 if CODE in command else 0


class _Millions:
    def __init__(self, report: Report, files: int) -> None:
        self._report, self._files = report, files

    def measure(self, what: str, code: str, *arguments: object) -> None:
        """Measure a line of Python, without the time and memory of its imports. The best of several runs counts."""
        progress(what)
        python = (sys.executable, "-c", CODE)
        taken, memory = min(_run(*python, code, *map(str, arguments)) for _ in range(ROUNDS))
        without, base = _run(*python, code.partition(";")[0])
        progress("")
        self.add(what, taken - without, memory - base)

    def list(self, what: str, folder: str) -> None:
        """Measure ``ls -R``."""
        progress(what)
        self.add(what, _run("ls", "-R", folder)[0], None)

    def add(self, what: str, taken: float, memory: int | None) -> None:
        name = f"{self._files:,} files: {what}"
        self._report.add(Figure("millions", name, taken, "s", goal=GOALS.get(what), at_most=True))
        if memory is not None:
            self._report.add(Figure("millions", f"{name}, memory a file", memory / self._files, "bytes"))


@contextmanager
def _mounted(
    millions: _Millions, what: str, packs: list[Path], options: tuple[str, ...], target: str
) -> Iterator[None]:
    begin = time.perf_counter()
    subprocess.run([*FFFS, "mount", *options, *map(str, packs), target], check=True)
    taken = time.perf_counter() - begin
    try:
        found = subprocess.run(["pgrep", "-f", f"fffs.mount {target}"], capture_output=True, text=True, check=False)
        memory = None
        if found.stdout:
            status = Path(f"/proc/{found.stdout.split()[0]}/status").read_text()
            memory = int(re.search(r"VmRSS:\s*(\d+)", status)[1]) * 1024  # type: ignore[index]
        millions.add(what, taken, memory)
        yield
    finally:
        subprocess.run([*FFFS, "umount", target], check=True)


def run(report: Report, scratch: Path, quick: bool) -> None:
    files = 1_000_000 if quick else 10_000_000
    pack = data.tiny_pack(scratch / f"tiny-{files}.ffr", files)
    parts = [
        data.tiny_pack(scratch / f"tiny-{files}-{k}.ffr", files // PARTS, k * files // PARTS // data.FOLDER_FILES)
        for k in range(PARTS)
    ]
    for path in (pack, *parts):
        page_cache.warm(path)
    millions = _Millions(report, files)
    millions.measure("open", OPEN, pack)
    millions.measure("union of 20", OPEN, *parts)
    millions.measure("torch", FOLDER, pack)
    millions.measure("info", COMMAND, "info", pack)
    millions.measure("verify", COMMAND, "verify", "-q", pack)
    with tempfile.TemporaryDirectory(dir=scratch) as target:
        if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
            report.skip("mount", "it needs root and /dev/fuse")
            return
        with _mounted(millions, "mount", [pack], (), target):
            millions.list("ls -R, mounted", target)
        with _mounted(millions, "mount of 20", parts, (), target):
            pass
        aligned = data.tiny_pack(scratch / f"tiny-{files}-aligned.ffr", files, align=True)
        with _mounted(millions, "mount -o kernel", [aligned], ("-o", "kernel,verify=off"), target):
            millions.list("ls -R, mounted by the kernel", target)
