"""``fffs stat``: shows a mount's request counters and read latency, which its daemon keeps."""

from __future__ import annotations

import argparse
import errno
import json
import os
import time
from typing import Any

from fffs.base.text import human, plural
from fffs.cli.output import put, say
from fffs.errors import DeadMountError, Exit, MountError
from fffs.mount.fs.counters import are_counters
from fffs.mount.fs.latency import percentile
from fffs.mount.system import questions
from fffs.mount.system.mounts import Mount, canonical, mount_at

ASK_SECONDS = 10.0
HEAD_EVERY = 20  # lines of --watch between two headings


def run(args: argparse.Namespace) -> int:
    """Show the counters once, or with --watch their changes until the mount is gone."""
    path = canonical(args.mountpoint)
    mount = find(path)
    if mount.in_kernel:
        return _describe_kernel(mount, args)
    device, counters = mount.device, ask(path)
    if args.watch:
        return _watch(path, device, counters, args.interval, args.json)
    if args.json:
        put(json.dumps(counters, indent=1).encode() + b"\n")
    else:
        for line in describe(counters):
            say(line)
    return Exit.OK


def _describe_kernel(mount: Mount, args: argparse.Namespace) -> int:
    if args.watch:
        raise MountError(f"{mount.path}: the kernel serves this mount and counts nothing, so there is nothing to watch")
    if args.json:
        put(json.dumps({"kernel": True, "source": mount.origin}, indent=1).encode() + b"\n")
    else:
        say(f"{mount.origin}, mounted by the kernel: no daemon, no counters; what is read is not verified")
    return Exit.OK


def find(path: str) -> Mount:
    """Return the mount at a path.

    Raises:
        MountError: the path is not a mount point, or not one of fffs.

    """
    mount = mount_at(path)
    if mount is None:
        raise MountError(f"{path}: " + ("not a mount point" if os.path.lexists(path) else "no such folder"))
    if not mount.ours:
        raise MountError(f"{path}: not an fffs mount, but one of type {mount.type}")
    return mount


def ask(path: str) -> dict[str, Any]:
    """Ask the daemon of a mount for its counters.

    Raises:
        DeadMountError: the daemon is gone.
        MountError: the daemon does not answer, or not as one of fffs does, or this user may not ask.

    """
    answer = questions.within(ASK_SECONDS, lambda: questions.read_facts(path, questions.STAT))
    if answer is None:
        raise MountError(f"{path}: the daemon of this mount does not answer")
    if not isinstance(answer, OSError) and not are_counters(answer):
        answer = questions.malformed()
    if isinstance(answer, OSError):
        raise _refusal(path, answer)
    return answer


def _refusal(path: str, error: OSError) -> MountError:
    if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
        return DeadMountError(f"{path}: the daemon of this mount is gone; clean up with: fffs umount {path}")
    if error.errno == errno.EACCES:
        return MountError(f"{path}: only the user who mounted it, and root with -o allow_other, may read its counters")
    if error.errno in (errno.ENODATA, errno.ENOTSUP):
        return MountError(f"{path}: this mount has no counters; it was made by an older version of fffs")
    return MountError(f"{path}: {error.strerror}")


# ---------------------------------------------------------------- once


def describe(counters: dict[str, Any]) -> list[str]:
    """Format the counters as readable lines."""
    native, python = counters["native"], counters["python"]
    path = f"with the fast path ({counters['threads']} threads)" if counters["fastpath"] else "without the fast path"
    lines = [f"mounted for {counters['seconds']:.0f} s, {path}", f"{'requests':16}{'native':>12}{'Python':>12}"]
    for kind in dict.fromkeys((*native, *python)):
        if native.get(kind) or python.get(kind):
            lines.append(f"  {kind:14}{native.get(kind, 0):12}{python.get(kind, 0):12}")
    lines.append(
        f"{'reads':16}{counters['reads']} of {human(counters['read_bytes'])}, {counters['read_errors']} failed"
    )
    if counters["cold_reads"] is not None:
        lines.append(
            f"{'':16}{counters['cold_reads']} had to wait for data, {counters['reads_waiting']} are queued now"
        )
    lines.append(f"{'verified':16}{counters['verified_records']} of {counters['records']} records")
    lines.append(f"{'bad records':16}{counters['bad_records']}")
    if counters.get("objects"):
        lines += _describe_objects(counters["objects"])
    times = [f"{name} {duration(value)}" for name, value in counters["read_latency_ns"].items() if value is not None]
    return [*lines, f"{'read latency':16}{', '.join(times) or 'no reads yet'}"]


def _describe_objects(sums: dict[str, int]) -> list[str]:
    """Format what the store was asked for, and what the cache saved; since the daemon began to open the source."""
    asked, hits, damaged = sums["asked"], sums["hits"], sums["damaged_records"] + sums["damaged_blocks"]
    share = f" ({100 * hits / asked:.0f} %)" if asked else ""
    return [
        f"{'store':16}{plural(sums['requests'], 'request')}, {sums['retries']} of them again, {sums['errors']} failed",
        f"{'':16}{human(sums['fetched'])} fetched for {human(asked)} asked for",
        f"{'cache':16}had {human(hits)}{share}, {human(asked - hits)} were missing",
        *([f"{'':16}{plural(damaged, 'damaged part')} fetched again"] if damaged else []),
    ]


def duration(nanoseconds: int | None) -> str:
    """Format a duration with three digits and a unit."""
    if nanoseconds is None:
        return "-"
    for unit, size in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if nanoseconds >= size:
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds} ns"


# ---------------------------------------------------------------- --watch


def _watch(path: str, device: str, before: dict[str, Any], interval: float, as_json: bool) -> int:
    """Print a line at each interval until the mount is gone. Ctrl-C raises KeyboardInterrupt."""
    line = 0
    while True:
        if as_json:
            put(json.dumps(before).encode() + b"\n", flush=True)
        time.sleep(interval)
        try:
            after = ask(path)
        except MountError:
            mount = mount_at(path)
            if mount is None or mount.device != device:
                return Exit.OK
            raise
        if not as_json:
            if line % HEAD_EVERY == 0:
                put(HEAD.encode() + b"\n")
            put(_row(before, after).encode() + b"\n", flush=True)
        before, line = after, line + 1


HEAD = (
    f"{'requests/s':>12}{'native':>8}{'reads/s':>10}{'bytes/s':>12}{'failed':>8}{'p50':>10}{'p99':>10}{'verified':>12}"
)


def _row(before: dict[str, Any], after: dict[str, Any]) -> str:
    seconds = max(after["seconds"] - before["seconds"], 1e-3)
    native, python = (sum(after[side].values()) - sum(before[side].values()) for side in ("native", "python"))
    reads, size, failed = (after[key] - before[key] for key in ("reads", "read_bytes", "read_errors"))
    pairs = zip(before["read_latency_log2_ns"], after["read_latency_log2_ns"], strict=True)
    latency = [new - old for old, new in pairs]
    share = f"{100 * native / (native + python):.0f} %" if native + python else "-"
    rates = f"{(native + python) / seconds:12.0f}{share:>8}{reads / seconds:10.0f}{human(size / seconds):>12}{failed:8}"
    times = "".join(f"{duration(percentile(latency, percent)):>10}" for percent in (50, 99))
    return f"{rates}{times}{after['verified_records']:12}"
