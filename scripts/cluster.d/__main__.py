"""Packs a folder on real engines, with a worker killed in the middle, and compares the results. See scripts/cluster."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fffs

PARTS = 40
KILL_AFTER = 0.3  # seconds
PATIENCE = 10.0  # seconds to look for a worker


def digest(folder: Path) -> str:
    """Return a digest of the names and bytes of all files."""
    hashed = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.iterdir()):
        hashed.update(path.name.encode() + path.read_bytes())
    return hashed.hexdigest()


def kill_worker(find: Callable[[], list[int]]) -> None:
    """Kill the first worker that is found, after a moment."""

    def kill() -> None:
        end = time.monotonic() + PATIENCE
        while not (found := find()) and time.monotonic() < end:
            time.sleep(0.01)
        for pid in found[:1]:
            print(f"  killing worker {pid}", flush=True)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    threading.Timer(KILL_AFTER, kill).start()


def workers_named(title: bytes) -> list[int]:
    """Return the processes of this user whose command line begins with a title."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if path.read_bytes().startswith(title) and path.stat().st_uid == os.geteuid():
                found.append(int(path.parent.name))
    return found


def process_id() -> int:
    """Return the id of this process; Ray takes no functions of C."""
    return os.getpid()


@contextlib.contextmanager
def processes() -> Iterator[Any]:
    """The processes of fffs itself, without a cluster."""
    yield "processes:2"


@contextlib.contextmanager
def dask() -> Iterator[Any]:
    """A cluster of Dask with two workers, by the address of its scheduler."""
    from distributed import Client, LocalCluster

    cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, Client(cluster) as client:
        pids = list(client.run(os.getpid).values())
        kill_worker(lambda: pids)
        yield f"dask:{cluster.scheduler_address}"


@contextlib.contextmanager
def ray() -> Iterator[Any]:
    """A cluster of Ray with two workers."""
    import ray

    environment = {"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}}
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", runtime_env=environment)
    ray.get([ray.remote(process_id).remote() for _ in range(2)])  # workers start
    kill_worker(lambda: workers_named(b"ray::run_task"))
    try:
        yield fffs.ray.executor()
    finally:
        ray.shutdown()


@contextlib.contextmanager
def submitit() -> Iterator[Any]:
    """Jobs of submitit on this machine."""
    from submitit import AutoExecutor

    with tempfile.TemporaryDirectory() as logs:
        executor = AutoExecutor(folder=logs, cluster="local")
        executor.update_parameters(timeout_min=5)
        yield executor


ENGINES = (processes, dask, ray, submitit)


def pack_from_store(engine: str, source: str, target: Path, parts: int) -> None:
    """Pack a folder of a store with one engine."""
    target.parent.mkdir()
    with {made.__name__: made for made in ENGINES}[engine]() as executor:
        begin = time.monotonic()
        summary = fffs.pack_folder(source, target, parts=parts, executor=executor)
        print(f"{engine}: {summary.files} objects in {parts} parts in {time.monotonic() - begin:.1f} s", flush=True)


def pack(source: Path, target: Path, executor: Any) -> None:
    """Pack, and print how long it took and what came out."""
    begin = time.monotonic()
    parts = 8 if target.name == "submitit" else PARTS  # each part is a new process
    fffs.pack_folder(source, target, parts=parts, executor=executor)
    seconds = time.monotonic() - begin
    expected = target.with_name(f"{target.name}-expected") / target.name
    expected.parent.mkdir()
    fffs.pack_folder(source, expected, parts=parts)
    same = digest(target) == digest(expected)
    print(f"{target.name}: {parts} parts in {seconds:.1f} s, {'the same bytes' if same else 'OTHER BYTES'}", flush=True)
    if not same:
        sys.exit(1)


def main() -> None:
    """Try all engines; or MPI, in a process that it started; or one engine with a folder of a store."""
    if sys.argv[1:2] == ["--mpi"]:
        pack(Path(sys.argv[2]), Path(sys.argv[3]), "mpi")
        return
    if len(sys.argv) == 5:
        pack_from_store(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
        return
    import numpy

    source = Path(sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(numpy.__file__)).absolute()
    sys.dont_write_bytecode = True  # the folder must not change
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    with tempfile.TemporaryDirectory(prefix="fffs-cluster-") as name:
        for engine in ENGINES:
            with engine() as executor:
                pack(source, Path(name) / engine.__name__, executor)
        mpiexec = Path(sys.executable).with_name("mpiexec")
        command = [mpiexec, "-n", "3", sys.executable, "-m", "mpi4py.futures", __file__, "--mpi", source]
        subprocess.run([*map(str, command), str(Path(name) / "mpi")], check=True)


if __name__ == "__main__":
    main()
