"""``cluster``: packing into parts by several workers: how it scales, and what planning, committing and engines cost.

Every job runs in a program of its own, because engines start processes that would import this one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import data
import numpy as np
from figures import Figure, Report, paired_ratio, progress

from fffs.formats.part_names import shard_name

JOB_FILES = 10_000  # of 1.1 GB together
PART = 256 << 20  # bytes of the parts of a job
TASKS = 200
HUGE = 10**8  # files that costs are extrapolated to
MEMORY = Path("/dev/shm")

START = """
import json, os, re, sys, time
import fffs
from fffs.cluster.processes import Processes
from fffs.packing.pack_plan import plan_pack
source, target = sys.argv[1:3]
rest = list(map(int, sys.argv[3:]))
def memory():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024
def told(**facts):
    print(json.dumps(facts))
"""

# The workers are warm, and each copies in one thread. The tasks are measured, without plan and commit.
SCALING = """
from fffs.cluster.executors import run_tasks
workers, parts, rounds = rest
seconds = []
with Processes(workers) as pool:
    list(map(lambda f: f.result(), [pool.submit(time.sleep, 0.5) for _ in range(workers)]))
    for k in range(rounds):
        plan = plan_pack(source, f"{target}-{k}", parts)
        begin = time.perf_counter()
        results = run_tasks(plan.tasks, pool, 1)
        seconds.append(time.perf_counter() - begin)
        plan.commit(results)
        os.system(f"rm -r {target}-{k}")
told(seconds=seconds)
"""

STEPS = """
parts, = rest
times = [time.perf_counter()]
plan = plan_pack(source, target, parts)
times.append(time.perf_counter())
results = [task.run() for task in plan.tasks]
times.append(time.perf_counter())
plan.commit(results)
times.append(time.perf_counter())
told(plan=times[1] - times[0], run=times[2] - times[1], commit=times[3] - times[2])
"""

PLAN = """
parts, = rest
before, begin = memory(), time.perf_counter()
from fffs.packing.source_folder import open_source
from fffs.packing.survey import survey
with open_source(os.fsencode(source)) as opened:
    places = survey(opened, parts)
told(seconds=time.perf_counter() - begin, memory=memory() - before, names=places[-1].names)
"""

SOME_TASKS = """
parts, some = rest
plan = plan_pack(source, target, parts)
begin = time.perf_counter()
files = sum(task.run().records for task in plan.tasks[:some])
told(seconds=time.perf_counter() - begin, files=files)
plan.abort()
"""

DASK = """
from distributed import Client, LocalCluster
with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
    client.wait_for_workers(2)
    begin = time.perf_counter()
    fffs.pack_folder(source, target, parts=rest[0], executor=client.get_executor())
    told(seconds=time.perf_counter() - begin)
"""

RAY = """
import ray
path = {"env_vars": {"PYTHONPATH": os.getcwd()}}
ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", runtime_env=path)
ray.get([ray.remote(lambda: os.getpid()).remote() for _ in range(2)])
begin = time.perf_counter()
fffs.pack_folder(source, target, parts=rest[0], executor=fffs.ray.executor())
told(seconds=time.perf_counter() - begin)
"""

OPEN = """
import fffs.layouts.union, fffs.packed_folder
begin = time.perf_counter()
with fffs.PackedFolder(source):
    told(seconds=time.perf_counter() - begin)
"""


def _job(code: str, *arguments: object, before: str = "") -> dict[str, Any]:
    """Run a program, and return what it told."""
    command = [sys.executable, "-c", START + code, *map(str, arguments)]
    if before:
        command = ["unshare", "--mount", "sh", "-c", f'{before} && exec "$@"', "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command[2][-200:]}: {done.stderr}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _add(report: Report, what: str, value: float, unit: str, goal: float | None = None) -> None:
    report.add(Figure("cluster", what, value, unit, goal=goal, at_most=True))


def _workers(report: Report, scratch: Path, count: int, rounds: int) -> None:
    """Two workers against one, with source and target in memory, so that no disk is the limit."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        source = Path(name, "photos")
        shutil.copytree(data.photo_folder(scratch, count), source)
        taken: dict[int, list[float]] = {1: [], 2: []}
        for k in range(rounds):
            progress(f"packing with one and two workers: round {k + 1} of {rounds}")
            for workers in taken:
                taken[workers] += _job(SCALING, source, Path(name, "set"), workers, 16, 3)["seconds"][1:]
    progress("")
    size = data.photo_sizes(count).sum() / 1e6
    rates = [size / np.median(taken[workers]) for workers in (2, 1)]
    ratio = paired_ratio(taken[1], taken[2])
    what = f"{count:,} files of 112 KiB in memory, 2 workers"
    report.add(Figure("cluster", what, rates[0], "MB/s", rates[1], "1 worker", ratio, 1.8))


def _steps(report: Report, scratch: Path, times: int, rounds: int) -> None:
    """The share of plan and commit in a job. Its sources are in the page cache, and its parts are written to the disk.

    times: how often the same files are part of the source.
    """
    if os.geteuid():
        report.skip("plan and commit", "only root can mount a folder in several places")
        return
    source = data.photo_folder(scratch, JOB_FILES)
    size = times * float(data.photo_sizes(JOB_FILES).sum())
    found = []
    with _several(scratch, source, times) as (folder, before), tempfile.TemporaryDirectory(dir=scratch) as name:
        for k in range(rounds):
            progress(f"planning and committing: round {k + 1} of {rounds}")
            os.sync()
            found.append(_job(STEPS, folder, Path(name, "set"), max(int(size / PART), 1), before=before))
            shutil.rmtree(Path(name, "set"))
    progress("")
    plan, run, commit = (float(np.median([one[step] for one in found])) for step in ("plan", "run", "commit"))
    what = f"plan and commit, share of a job of {size / 1e9:.1f} GB"
    _add(report, what, (plan + commit) / (plan + run + commit) * 100, "%", 2)
    _add(report, "plan of that job", plan, "s")
    _add(report, "commit of that job", commit, "s")
    _add(report, "its tasks, without workers", run, "s")


@contextlib.contextmanager
def _several(scratch: Path, source: Path, times: int) -> Iterator[tuple[Path, str]]:
    """Yield a folder, and a command of root that mounts the source in it several times, for a namespace of mounts."""
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        places = [Path(name, str(k)) for k in range(times)]
        for place in places:
            place.mkdir()
        yield Path(name), " && ".join(f"mount --bind {source} {place}" for place in places)


def _engines(report: Report, scratch: Path) -> None:
    def make(folder: Path) -> None:
        folder.mkdir()
        for k in range(TASKS):
            (folder / f"{k:03}").write_bytes(np.random.default_rng(k).bytes(1_000_000))

    source = data.kept(scratch / f"tasks-{TASKS}", make)
    for name, module, code, goal in (("Dask", "distributed", DASK, 5), ("Ray", "ray", RAY, 10)):
        if importlib.util.find_spec(module) is None:
            report.skip(f"{TASKS} tasks in {name}", f"{module} is not installed")
            continue
        progress(f"{TASKS} tasks in {name}")
        with tempfile.TemporaryDirectory(dir=scratch) as place:
            taken = _job(code, source, Path(place, "set"), TASKS)["seconds"]
        progress("")
        _add(report, f"{TASKS} tasks of 1 MB in {name}, 2 workers", taken, "s", goal)


def _plans(report: Report, scratch: Path, folders: int) -> None:
    """Plans of tiny files, and of ten times as many names by mounting their folder in ten places."""
    source = data.tiny_folder(scratch, folders, 1000)
    _plan(report, source, folders * 1000)
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        found = _job(SOME_TASKS, source, Path(name, "set"), TASKS, TASKS // 10)
    _add(report, "tasks of tiny files, a file", found["seconds"] / found["files"] * 1e6, "us")
    if os.geteuid():
        report.skip(f"a plan of {folders * 10000:,} names", "only root can mount a folder in ten places")
        return
    with _several(scratch, source, 10) as (folder, before):
        taken = _plan(report, folder, folders * 10000, before)
    _add(report, f"the same, for {HUGE:,} names", taken / (folders * 10000) * HUGE, "s")


def _plan(report: Report, source: Path, names: int, before: str = "") -> float:
    progress(f"planning {names:,} names")
    _job(PLAN, source, "-", TASKS, before=before)  # the names are cached then
    found = _job(PLAN, source, "-", TASKS, before=before)
    progress("")
    _add(report, f"plan of {names:,} names in {TASKS} parts", found["seconds"], "s")
    _add(report, f"plan of {names:,} names, a name", found["seconds"] / found["names"] * 1e6, "us")
    _add(report, f"plan of {names:,} names, memory", found["memory"] / 1e6, "MB")
    return float(found["seconds"])


def _set(report: Report, scratch: Path, files: int) -> None:
    """Opening a set of many parts."""
    folder = scratch / f"tiny-set-{files}"

    def make(unfinished: Path) -> None:
        unfinished.mkdir()
        each = files // TASKS
        for k in range(TASKS):
            path = unfinished / shard_name("tiny", k, TASKS, ".ffr")
            data.tiny_pack(path, each, k * each // data.FOLDER_FILES)

    data.kept(folder, make)
    taken = min(_job(OPEN, folder, "-")["seconds"] for _ in range(3))
    _add(report, f"opening {TASKS} parts with {files:,} files", taken, "s", 3)
    _add(report, f"opening {TASKS} parts, a file", taken / files * 1e6, "us")


def run(report: Report, scratch: Path, quick: bool) -> None:
    """Measure all."""
    _workers(report, scratch, 2_000, 2 if quick else 5)
    _steps(report, scratch, 1 if quick else 9, 1 if quick else 3)
    _engines(report, scratch)
    _plans(report, scratch, 100 if quick else 1_000)
    _set(report, scratch, 1_000_000 if quick else 10_000_000)
