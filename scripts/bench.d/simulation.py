"""Simulates a job on up to 1,000 workers, from the times of tasks that ran: how long it takes, and why not less.

Usage: .venv/bin/python scripts/bench.d/simulation.py [REPORT] [--plot FILE], with a file of fffs pack --report.

The job packs 1 TB of files of 112 KiB. Its tasks have the seconds per byte of those in the report, drawn at random. The
driver plans in one thread, submits one task after the other, runs a task again that failed, and commits.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
from dataclasses import dataclass, replace
from pathlib import Path

import chart

SIZE, FILE = 10**12, 112 * 1024
WORKERS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
PARTS = (200, 1000, 4000)
TRIALS = 15


@dataclass(frozen=True)
class Costs:
    """What slows a job down: seconds of the plan for a name, of submitting a task, of committing a part; the share of
    attempts that fail, and of those that take ``slow`` times as long.
    """

    name: float = 0
    submit: float = 0
    commit: float = 0
    failing: float = 0
    slow_share: float = 0
    slow: float = 5


REAL = Costs(name=1.9e-6, submit=0.004, commit=0.0005, failing=0.01, slow_share=0.01)


def makespan(times: list[float], workers: int, costs: Costs, rng: random.Random) -> float:
    """Return the seconds from the first submission until all tasks are done. Attempts run as they are submitted."""
    free = [0.0] * workers
    waiting = [(k * costs.submit, k) for k in range(len(times))]  # when an attempt can begin, and its task
    end = 0.0
    while waiting:
        ready, k = heapq.heappop(waiting)
        begin = max(ready, free[0])
        taken = times[k] * (costs.slow if rng.random() < costs.slow_share else 1)
        if rng.random() < costs.failing:  # at any moment of the attempt
            done = begin + taken * rng.random()
            heapq.heappush(waiting, (done, k))
        else:
            done = begin + taken
        heapq.heapreplace(free, done)
        end = max(end, done)
    return end


def job(rates: list[float], parts: int, workers: int, costs: Costs) -> tuple[float, float]:
    """Return the median seconds of a job, and its efficiency: the time of the work, divided by that of all workers.

    rates: seconds per byte of tasks that ran.
    """
    seconds, work = [], []
    for trial in range(TRIALS):
        rng = random.Random(trial)
        times = [rng.choice(rates) * SIZE / parts for _ in range(parts)]
        work.append(sum(times))
        around = costs.name * SIZE / FILE + costs.commit * parts
        seconds.append(around + makespan(times, workers, costs, rng))
    taken = statistics.median(seconds)
    return taken, statistics.median(work) / workers / taken


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate a job of 1 TB on up to 1,000 workers.")
    parser.add_argument(
        "report",
        type=Path,
        nargs="?",
        default=Path(__file__).with_name("recorded_tasks.json"),
        help="a file of fffs pack --report, whose tasks have times (default: 40 tasks that packed 10,000 photos)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw time and efficiency, as .svg or .png")
    args = parser.parse_args()
    tasks = json.loads(args.report.read_text())["tasks"]
    rates = [task["seconds"] / task["bytes"] for task in tasks if task["bytes"]]
    times: chart.Lines = {}
    for parts in PARTS:
        times[f"{parts:,} parts"] = [(n, job(rates, parts, n, REAL)[0]) for n in WORKERS]
    alone = Costs()
    steps = {
        "tasks alone": alone,
        "and 1 % fail": (alone := replace(alone, failing=REAL.failing)),
        "and 1 % take 5 times as long": (alone := replace(alone, slow_share=REAL.slow_share)),
        "and are submitted one by one": (alone := replace(alone, submit=REAL.submit)),
        "and plan and commit": REAL,
    }
    why: chart.Lines = {
        name: [(n, job(rates, PARTS[-1], n, costs)[1]) for n in WORKERS] for name, costs in steps.items()
    }
    for title, lines in (("seconds", times), (f"efficiency, {PARTS[-1]:,} parts", why)):
        print(title)
        for name, points in lines.items():
            print(f"  {name:32}", *(f"{n}: {value:.4g}" for n, value in points if n in (1, 10, 100, 200, 500, 1000)))
    if args.plot:
        panels = {
            "seconds for 1 TB": (times, True),
            f"efficiency, {PARTS[-1]:,} parts": (why, False),
        }
        chart.draw_lines(panels, "workers", args.plot)


if __name__ == "__main__":
    main()
