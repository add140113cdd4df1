"""``fffs cache``: lists, verifies and prunes what is kept of objects in stores on the local disk."""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from typing import Any

from fffs.base.cache_settings import cache_settings
from fffs.base.sizes import parse_budget
from fffs.base.text import human, plural
from fffs.cli.output import complain, put, say
from fffs.cli.progress import ProgressBar
from fffs.errors import EntryNotFoundError, Exit, RecordError, UsageError
from fffs.objects.cache_space import Cached
from fffs.objects.cache_upkeep import CacheState, list_cached, prune_cached, verify_cached
from fffs.objects.names import shown

HEAD = f"{'size':>10}{'cached':>10}{'share':>7}  {'last use':16}  object"


def run(args: argparse.Namespace) -> int:
    """Run a subcommand."""
    return int({"ls": _list, "verify": _verify, "prune": _prune}[args.action](args))


def _name(entry: Cached) -> str:
    return entry.version.name if entry.version else f"unknown, its map is damaged ({entry.key})"


# ---------------------------------------------------------------- ls


def _list(args: argparse.Namespace) -> int:
    state = list_cached(cache_settings())
    if args.json:
        facts = {"folder": state.folder, "limit_bytes": state.limit, "cached_bytes": state.bytes}
        objects = [_describe(entry, entry.key in state.in_use) for entry in state.entries]
        put(json.dumps(facts | {"objects": objects}, indent=1).encode() + b"\n")
        return Exit.OK
    if state.entries:
        put(HEAD.encode() + b"\n")
    for entry in state.entries:
        say(_line(entry) + (" (in use)" if entry.key in state.in_use else ""))
    where = f" of at most {human(state.limit)}, in {state.folder}"
    where = where if state.space else f"; {state.folder} does not exist"
    say(f"total: {plural(len(state.entries), 'object')}, {human(state.bytes)}{where}")
    return Exit.OK


def _line(entry: Cached) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
    size = human(entry.version.size) if entry.version else "?"
    return f"{size:>10}{human(entry.bytes):>10}{_share(entry):>5} %  {when:16}  {_name(entry)}"


def _share(entry: Cached) -> int:
    """Return how much of an object is there, in percent. Blocks of a file system may be larger than the object."""
    return min(100 * entry.bytes // entry.version.size, 100) if entry.version else 0


def _describe(entry: Cached, in_use: bool) -> dict[str, Any]:
    version = asdict(entry.version) if entry.version else {"name": None, "etag": None, "size": None}
    facts = {"key": entry.key, "cached_bytes": entry.bytes, "share_percent": _share(entry), "used": entry.used}
    return version | facts | {"in_use": in_use}


# ---------------------------------------------------------------- verify


def _verify(args: argparse.Namespace) -> int:
    with ProgressBar("verifying the cache") as bar:
        results = verify_cached(cache_settings(), bar)
    blocks, damaged = sum(result.blocks for result in results), sum(result.damaged for result in results)
    unknown = [result for result in results if result.map_damaged]
    if args.json:
        objects = [
            {"name": r.entry.version.name if r.entry.version else None, "key": r.entry.key}
            | {"blocks": r.blocks, "damaged": r.damaged, "removed": r.removed}
            for r in results
        ]
        put(json.dumps({"blocks": blocks, "damaged": damaged, "objects": objects}, indent=1).encode() + b"\n")
    else:
        for result in results:
            if result.damaged:
                say(f"{_name(result.entry)}: {result.damaged} of {plural(result.blocks, 'block')} dropped")
        for result in unknown:
            say(f"{_name(result.entry)}: " + ("removed" if result.removed else "in use, not removed"))
        if not damaged and not unknown:
            say(f"ok: {plural(blocks, 'block')} of {plural(len(results), 'object')}")
    if not damaged and not unknown:
        return Exit.OK
    more = f", and {plural(len(unknown), 'map')}" if unknown else ""
    complain(f"{damaged} of {plural(blocks, 'block')}{more} damaged; what was dropped is fetched again when it is read")
    return RecordError.exit_code


# ---------------------------------------------------------------- prune


def _prune(args: argparse.Namespace) -> int:
    if (args.all, args.keep is not None, bool(args.name)).count(True) != 1:
        raise UsageError("fffs cache prune: give names of objects, or --keep SIZE, or --all")
    settings = cache_settings()
    before = list_cached(settings)
    names = [_known(name, before) for name in args.name] if args.name else None
    most = parse_budget(args.keep).of(before.space) if args.keep else 0
    removed = prune_cached(settings, most, names)
    for entry in removed:
        say(f"removed: {_name(entry)}, {human(entry.bytes)}")
    after = list_cached(settings)
    for entry in after.entries:
        wanted = names is None or (entry.version is not None and entry.version.name in names)
        if entry.key in after.in_use and wanted and after.bytes > most:
            say(f"in use: {_name(entry)}, {human(entry.bytes)}")
    left = f"{plural(len(after.entries), 'object')} of {human(after.bytes)} left"
    say(f"freed {human(sum(entry.bytes for entry in removed))}; {left} in {after.folder}")
    return Exit.OK


def _known(name: str, state: CacheState) -> str:
    """Return a name as the cache has it. Raises EntryNotFoundError."""
    names = {entry.version.name for entry in state.entries if entry.version}
    found = name if name in names else shown(name)
    if found not in names:
        raise EntryNotFoundError(f"{found}: not in the cache {state.folder} (fffs cache ls shows what is)")
    return found
