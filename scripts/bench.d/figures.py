"""Figures: measured values with their baselines and goals; functions that measure; a description of the machine."""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from fffs import __version__
from fffs.native import engine, lib


@dataclass
class Figure:
    """One row of the table. The goal applies to the ratio to a baseline, or to the value if there is no ratio."""

    measure: str
    what: str
    value: float
    unit: str
    baseline: float | None = None
    against: str = ""
    ratio: float | None = None
    goal: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None if there is no goal."""
        if self.goal is None:
            return None
        judged = self.value if self.ratio is None else self.ratio
        return judged <= self.goal if self.at_most else judged >= self.goal


class Report:
    """Collects figures and prints each one."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.skipped: list[str] = []
        self.busy = os.getloadavg()[0] > len(os.sched_getaffinity(0)) / 2

    def add(self, figure: Figure) -> None:
        if not self.figures:
            print(_row("", "", "fffs", "against", "", "ratio", "goal"))
        self.figures.append(figure)
        goal = ""
        if figure.goal is not None:
            unit = "" if figure.ratio is not None else f" {figure.unit}"
            verdict = "met" if figure.met else "MISSED"
            goal = f"{'<=' if figure.at_most else '>='} {_number(figure.goal)}{unit}  {verdict}"
        baseline = "" if figure.baseline is None else _number(figure.baseline)
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
        ours = _number(figure.value)
        print(_row(figure.measure, figure.what, ours, baseline, figure.unit, ratio, goal), flush=True)

    def skip(self, what: str, why: str) -> None:
        self.skipped.append(f"{what}: {why}")
        print(f"skipped: {what}: {why}", flush=True)

    def finish(self, scratch: Path) -> dict[str, object]:
        """Print how many goals were met. Returns everything as one document for JSON."""
        judged = [figure for figure in self.figures if figure.met is not None]
        print(f"\n{sum(bool(figure.met) for figure in judged)} of {len(judged)} goals met")
        if self.busy:
            print("the machine was busy when the measurement began; measure again when it is idle")
        return {
            "machine": machine(scratch) | {"busy": self.busy},
            "figures": [asdict(figure) | {"met": figure.met} for figure in self.figures],
            "skipped": self.skipped,
        }


def write_json(document: dict[str, object], path: Path) -> None:
    path.write_text(json.dumps(document, indent=2, default=float) + "\n")


def _row(measure: str, what: str, ours: str, baseline: str, unit: str, ratio: str, goal: str) -> str:
    return f"{measure:9}{what:61}{ours:>10}{baseline:>10} {unit:11}{ratio:>6}  {goal}".rstrip()


def _number(value: float) -> str:
    if value >= 100_000:
        return f"{value / 1e6:.2f}M"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


# ---------------------------------------------------------------- measuring


def seconds(run: Callable[[], object]) -> float:
    """Return how long a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def best(run: Callable[[], object], rounds: int) -> float:
    """Return the shortest time of several calls."""
    return min(seconds(run) for _ in range(rounds))


def paired_ratio(baseline: Iterable[float], ours: Iterable[float]) -> float:
    """Return how much faster fffs is: the median over pairs that were measured directly one after the other, so that
    noise affects both.
    """
    return statistics.median(theirs / mine for theirs, mine in zip(baseline, ours, strict=True))


def in_turns(
    ours: Callable[[], object], theirs: Callable[[], object], prepare: Callable[[], object], what: str, rounds: int
) -> tuple[list[float], list[float]]:
    """Return the seconds per round of two programs that write much, the mean of two runs each.

    The order in a round is ours, theirs, theirs, ours, so that both have the same disk activity before them.
    """
    taken: tuple[list[float], list[float]] = [], []
    for k in range(rounds):
        progress(f"{what}: round {k + 1} of {rounds}")
        taken[0].append(0)
        taken[1].append(0)
        for turn in (0, 1, 1, 0):
            prepare()
            taken[turn][-1] += seconds((ours, theirs)[turn]) / 2
    progress("")
    return taken


def progress(text: str) -> None:
    """Show a line on a terminal, instead of the previous one; "" removes it."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


# ---------------------------------------------------------------- the machine


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def machine(scratch: Path) -> dict[str, object]:
    """Describe the machine and the versions of the software."""
    cpu = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu[1] if cpu else platform.machine(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "kernel": platform.release(),
        "file_system": _output("stat", "-f", "-c", "%T", str(scratch)),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "libc": " ".join(platform.libc_ver()),
        "fio": _output("fio", "--version"),
        "tar": _output("tar", "--version").partition("\n")[0],
        "fffs": __version__,
        "commit": _output("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"),
        "engine": engine.name(),
        "engine_threads": lib.fffs_engine_threads(),
    }
