"""Keeps mounts under load. Run it with scripts/soak, which prepares the environment."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

from load import Load
from watched import Watched

import fffs

TESTS = Path(__file__).parents[2] / "tests"
MODES = {"pyfuse3": "off", "fastpath": "on"}
DESCRIPTION = """A copy of Python's standard library and a few large files are packed and mounted twice, without and
with the fast path. tar, find and random readers use both mounts while other mounts of the same file begin and end.
Every byte is compared. Once a minute a line reports the work done, and the memory and descriptors of each daemon.

The exit status is 1 if a byte was wrong, a call failed, a daemon ended or logged a problem, or if its memory or
descriptors grew by more than 2 % (and 1 MiB, 2 descriptors) after the warm-up, which is a fifth of the time."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=0, metavar="N", help="how long to use the mounts")
    parser.add_argument(
        "--examples", type=int, default=0, metavar="M", help="first compare M random call sequences with plain folders"
    )
    parser.add_argument(
        "--reads", type=int, default=0, metavar="R", help="then read R times around each accident to a source"
    )
    parser.add_argument("--source", type=Path, metavar="DIR", help="folder to pack (default: the standard library)")
    args = parser.parse_args()
    # Unmount at SIGTERM, and at SIGINT also as a background job of a script, where it is ignored by default.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    if not (args.minutes or args.examples or args.reads):
        parser.error("nothing to do: give --minutes, --examples or --reads")
    ok = True
    if args.examples:
        ok &= run_tests("test_mount_model.py", {"FFFS_MODEL_EXAMPLES": str(args.examples)})
    if args.reads:
        ok &= run_tests("test_mount_accidents.py", {"FFFS_ACCIDENT_READS": str(args.reads)})
    if args.minutes:
        with tempfile.TemporaryDirectory(prefix="fffs-soak-") as name:
            ok &= soak(Path(name), args.source, args.minutes)
    print("soak: all good" if ok else "soak: FAILED, see above")
    return 0 if ok else 1


def run_tests(file: str, environment: dict[str, str]) -> bool:
    began = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", TESTS / file]
    code = subprocess.run(command, cwd=TESTS.parent, env={**os.environ, **environment}, check=False).returncode
    settings = " ".join(f"{name}={value}" for name, value in environment.items())
    print(f"soak: {file} with {settings}: exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
    return code == 0


def make_source(folder: Path, given: Path | None) -> Path:
    """Make the folder to pack: a copy, which does not change meanwhile, and large files."""
    source = given or Path(sysconfig.get_path("stdlib"))
    ignored = shutil.ignore_patterns("site-packages", "dist-packages", "__pycache__")
    shutil.copytree(source, folder, symlinks=True, ignore=None if given else ignored)
    for k, size in enumerate((3 << 20, (16 << 20) + 12345, 64 << 20)):
        (folder / f"large-{k}").write_bytes(os.urandom(1 << 20) * (size >> 20) + os.urandom(size & 0xFFFFF))
    return folder


def soak(work: Path, given: Path | None, minutes: float) -> bool:
    source = make_source(work / "source", given)
    summary = fffs.pack_folder(source, work / "pack.ffr")
    print(f"soak: {source if given else 'the standard library'}, packed: {summary}", flush=True)
    watched: list[Watched] = []
    load: Load | None = None
    try:
        for mode, option in MODES.items():
            watched.append(Watched(mode, work, option))
        load = Load(work, source, watched)
        load.start()
        finish(watched, load, minutes)
    finally:
        problems = load.stop() if load else []
        for daemon in watched:
            problems += daemon.end()
    assert load
    for name, latency in load.latencies().items():
        print(f"soak: {name}: {latency}")
    for problem in problems:
        print(f"soak: {problem}")
    return not problems


def finish(watched: list[Watched], load: Load, minutes: float) -> None:
    """Wait until the time is over or a problem was found. Samples the daemons, and prints progress."""
    began = last = time.monotonic()
    while (now := time.monotonic()) < began + minutes * 60 and not load.failed():
        time.sleep(min(1.0, max(began + minutes * 60 - now, 0)))
        share = (time.monotonic() - began) / (minutes * 60)
        for daemon in watched:
            daemon.sample(warm=share >= 0.2)
        if time.monotonic() - last >= 60:
            last += 60
            print(f"soak: {(last - began) / 60:.0f} min: {load.progress()}; {'; '.join(map(str, watched))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
