"""The load on the mounts: threads run tar, find, random reads and further mounts, and compare every byte."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from watched import Watched, complaints

import fffs.mount
from fffs.mount.options import parse

READERS = 2
BUCKETS = 48


class Load:
    """Threads that use some mounts until they are stopped or one of them finds a problem."""

    def __init__(self, work: Path, source: Path, watched: list[Watched]) -> None:
        self._work, self._source, self._watched = work, source, watched
        self._stopped = threading.Event()
        self._problems: list[str] = []
        self._done: Counter[str] = Counter()
        self._latency = {daemon.mode: [0] * BUCKETS for daemon in watched}
        self._listing = _listing(source)
        self._tar = _tar(source)
        self._files = {
            os.path.relpath(path, source): _digest(path)
            for path in source.rglob("*")
            if stat.S_ISREG(path.lstat().st_mode)
        }
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        for daemon in self._watched:
            self._begin(self._use_tar, daemon)
            self._begin(self._use_find, daemon)
            self._begin(self._remount, daemon)
            for seed in range(READERS):
                self._begin(self._read, daemon, seed)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        def run() -> None:
            try:
                while not self._stopped.is_set():
                    work(*arguments)
            except Exception as error:
                self._problems.append(f"{work.__name__[1:]}: {type(error).__name__}: {error}")
                self._stopped.set()

        thread = threading.Thread(target=run)
        thread.start()
        self._threads.append(thread)

    def failed(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> list[str]:
        """Stop all threads. Returns the problems that they found."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        return self._problems

    def progress(self) -> str:
        done = self._done
        return f"{done['tar']} tar, {done['find']} find, {done['reads']} reads, {done['mounts']} mounts"

    def latencies(self) -> dict[str, str]:
        """Return, by mode, how long it took to open, read and close random files, most of them not cached."""
        return {
            mode: f"{sum(buckets)} random reads took " + ", ".join(f"p{p:g} {_percentile(buckets, p)}" for p in POINTS)
            for mode, buckets in self._latency.items()
        }

    # ------------------------------------------------------------ called in a loop by the threads

    def _use_tar(self, daemon: Watched) -> None:
        _expect(_tar(daemon.path) == self._tar, f"{daemon.mode}: tar found a difference")
        self._done["tar"] += 1

    def _use_find(self, daemon: Watched) -> None:
        _expect(_listing(daemon.path) == self._listing, f"{daemon.mode}: find found a difference")
        self._done["find"] += 1

    def _read(self, daemon: Watched, seed: int) -> None:
        rng = random.Random(f"{seed} {self._done['reads']}")
        latency = self._latency[daemon.mode]
        for name in rng.choices(list(self._files), k=50):
            began = time.perf_counter_ns()
            digest = _digest(daemon.path / name, forget=rng.random() < 0.7)
            latency[(time.perf_counter_ns() - began).bit_length() - 1] += 1
            _expect(digest == self._files[name], f"{daemon.mode}: {name} differs")
            self._done["reads"] += 1

    def _remount(self, daemon: Watched) -> None:
        """Make another mount in the same mode, read a file, unmount. The pack is dropped from the page cache before."""
        with open(self._work / "pack.ffr", "rb") as pack:
            os.posix_fadvise(pack.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        path, log = self._work / f"short {daemon.mode}", self._work / f"short {daemon.mode}.log"
        options = parse([f"fastpath={daemon.fastpath}", f"log={log}"])
        fffs.mount.mount(self._work / "pack.ffr", path, options=options)
        try:
            name = random.Random(self._done["mounts"]).choice(list(self._files))
            _expect(_digest(path / name) == self._files[name], f"{daemon.mode}: {name} differs in a new mount")
        finally:
            # Lazily, because a child of another thread holds our open files between fork and exec.
            fffs.mount.umount(path, lazy=True)
        end = time.monotonic() + REMOVED_SECONDS  # if such a child exists, the daemon removes the folder when it ends
        while path.exists() and time.monotonic() < end:
            time.sleep(0.01)
        _expect(not path.exists(), f"{path} was left behind")
        _expect(not complaints(log), "\n".join(complaints(log)))
        self._done["mounts"] += 1
        self._stopped.wait(2)


REMOVED_SECONDS = 30.0
POINTS = (50, 90, 99, 99.9)


def _expect(condition: bool, problem: str) -> None:
    if not condition:
        raise AssertionError(problem)


def _listing(folder: Path) -> list[bytes]:
    layout = "%P %y %m %n %T@ %l\\n"
    return sorted(subprocess.check_output(["find", ".", "-printf", layout], cwd=folder).splitlines())


def _tar(folder: Path) -> str:
    """Return a digest of the sorted output of tar: names, modes, times, links and contents."""
    command = ["tar", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "-cf", "-", "-C", folder, "."]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        digest = hashlib.file_digest(process.stdout, "sha256") if hasattr(hashlib, "file_digest") else _old(process)
    _expect(process.returncode == 0, f"tar ended with {process.returncode}")
    return digest.hexdigest()


def _old(process: subprocess.Popen[bytes]) -> hashlib._Hash:
    assert process.stdout is not None
    digest = hashlib.sha256()
    while piece := process.stdout.read(1 << 18):
        digest.update(piece)
    return digest


def _digest(path: Path, forget: bool = False) -> bytes:
    with open(path, "rb", buffering=0) as file:
        if forget:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        digest = hashlib.sha256()
        while piece := file.read(1 << 20):
            digest.update(piece)
        return digest.digest()


def _percentile(buckets: list[int], percent: float) -> str:
    """Return a percentile as the upper bound of its bucket, a power of two."""
    wanted = sum(buckets) * percent / 100
    for power, count in enumerate(buckets):
        wanted -= count
        if count and wanted <= 0:
            return f"< {2 ** (power + 1) / 1e6:.3g} ms"
    return "none"
