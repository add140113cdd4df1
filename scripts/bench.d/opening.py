"""``open``: a packed folder of a million small files is opened in a new process, mounted, and one folder is listed."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import data
import page_cache
from figures import Figure, Report, progress, seconds

# Prints seconds, and the growth of resident memory in bytes: when open, and at its peak. Imports are excluded.
OPEN = r"""
import json, re, sys, time
from fffs import PackedFolder
def memory(name):
    with open("/proc/self/status") as status:
        return int(re.search(name + r":\s*(\d+) kB", status.read())[1]) * 1024
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak counts from here
before = memory("VmRSS")
start = time.perf_counter()
folder = PackedFolder(sys.argv[1])
seconds = time.perf_counter() - start
print(json.dumps([seconds, memory("VmRSS") - before, memory("VmHWM") - before]))
assert folder.num_files() == int(sys.argv[2])
"""


def _open(path: Path, files: int, rounds: int) -> list[float]:
    """Return seconds, and bytes of memory when open and at the peak: the best of the rounds, because other programs can
    only increase them.
    """
    results = []
    for k in range(rounds):
        progress(f"opening {path.name}: round {k + 1} of {rounds}")
        page_cache.warm(path)
        command = [sys.executable, "-c", OPEN, str(path), str(files)]
        results.append(json.loads(subprocess.run(command, capture_output=True, check=True).stdout))
    progress("")
    return [min(column) for column in zip(*results, strict=True)]


def _mount(report: Report, path: Path, scratch: Path, rounds: int) -> None:
    """Mount, list a folder that is not cached, and unmount, with the commands that a user calls."""
    fffs = [sys.executable, "-m", "fffs"]
    mounted, listed, listed_long = [], [], []
    with tempfile.TemporaryDirectory(dir=scratch) as target:
        for k in range(rounds):
            progress(f"mounting {path.name}: round {k + 1} of {rounds}")
            page_cache.warm(path)
            mounted.append(seconds(lambda: subprocess.run([*fffs, "mount", path, target], check=True)))
            try:
                folders = sorted(os.listdir(target))
                first, second = (os.path.join(target, folders[i % len(folders)]) for i in (7 * k, 7 * k + 1))
                listed.append(_list("ls", first))
                listed_long.append(_list("ls", "-l", second))
            finally:
                subprocess.run([*fffs, "umount", target], check=True)
    progress("")
    report.add(Figure("open", "fffs mount, until it answers", min(mounted), "s", goal=1, at_most=True))
    report.add(_milliseconds("ls of one of its folders, mounted", min(listed), 50))
    report.add(_milliseconds("ls -l of one of its folders, mounted", min(listed_long)))


def _list(*command: str) -> float:
    """Return how long a listing takes."""
    start = time.perf_counter()
    lines = subprocess.run(command, capture_output=True, check=True).stdout.count(b"\n")
    taken = time.perf_counter() - start
    if lines < data.FOLDER_FILES:
        raise RuntimeError(f"{' '.join(command)}: only {lines} lines")
    return taken


def _milliseconds(what: str, time: float, goal: float | None = None) -> Figure:
    return Figure("open", what, 1e3 * time, "ms", goal=goal, at_most=True)


def run(report: Report, scratch: Path, quick: bool) -> None:
    files = 100_000 if quick else 1_000_000
    rounds = 5 if quick else 15
    path = data.packed_folder(scratch, files, with_trailer=True)
    name = f"{files:,} files"
    time, grown, peak = _open(path, files, rounds)
    report.add(_milliseconds(f"{name}", time, 20))
    report.add(Figure("open", f"{name}, memory when open", grown / 1e6, "MB", goal=100, at_most=True))
    report.add(Figure("open", f"{name}, memory at most", peak / 1e6, "MB"))
    other = data.packed_folder(scratch, files, with_trailer=False)
    time, grown, peak = _open(other, files, min(rounds, 5))
    report.add(_milliseconds(f"{name}, no trailer", time, 1500))
    report.add(Figure("open", f"{name}, no trailer, memory when open", grown / 1e6, "MB"))
    report.add(Figure("open", f"{name}, no trailer, memory at most", peak / 1e6, "MB"))
    if importlib.util.find_spec("fffs.mount") is None:
        report.skip("mount and ls", "fffs.mount is not installed")
    elif not os.path.exists("/dev/fuse"):
        report.skip("mount and ls", "/dev/fuse does not exist")
    else:
        _mount(report, path, scratch, min(rounds, 5))
