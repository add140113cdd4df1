"""``fffs info``."""

from __future__ import annotations

import argparse
import json
import stat
from typing import Any

from fffs.base.text import human
from fffs.cli.output import put, say, warn
from fffs.errors import Exit
from fffs.layouts import load_source
from fffs.layouts.packed import load as load_packed
from fffs.layouts.view import TreeView
from fffs.native import engine
from fffs.native.checksums import CHECKSUMS

LAYOUTS = {
    "packed": "packed folder",
    "union": "union of packed folders",
    "plain": "record file",
    "granular": "granular data set",
}


def run(args: argparse.Namespace) -> int:
    """Describe a source."""
    with load_source(args.source, format=args.format) as source:
        warn(source.warnings)
        facts = describe(source)
    if args.json:
        put(json.dumps(facts, indent=1).encode() + b"\n")
        return Exit.OK
    for key, value in facts.items():
        say(f"{key.replace('_', ' ') + ':':20}{_readable(key, value)}")
    return Exit.OK


def _readable(key: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value} ({human(value)})" if key.endswith("bytes") else str(value)


def _checksums(check: int) -> str:
    return f"{CHECKSUMS[check].title} per record" if check in CHECKSUMS else "none (not verifiable)"


def describe(source: TreeView) -> dict[str, Any]:
    """Return facts about a source, by name."""
    tree, files = source.tree, source.store.files
    kinds = tree.kinds
    facts: dict[str, Any] = {
        "sources": [file.index.path for file in files],
        "format": ", ".join(dict.fromkeys(file.index.format for file in files)),
        "layout": LAYOUTS[source.layout],
        "records": source.store.n,
        "size_bytes": sum(file.index.file_size for file in files),
        "checksums": ", ".join(dict.fromkeys(_checksums(file.index.check) for file in files)),
        "engine": engine.name(),
    }
    if source.layout != "plain":
        facts |= {
            "files": int((kinds == stat.S_IFREG).sum()),
            "folders": int((kinds == stat.S_IFDIR).sum()) - 1,
            "symbolic_links": int((kinds == stat.S_IFLNK).sum()),
        }
    if source.layout in ("packed", "union"):
        facts |= {
            "modes_and_times": all(load_packed(file).lossless for file in files),
            "block_checksums": sum(len(file.index.blocks.checksums) for file in files if file.index.blocks),
        }
    if any(file.index.truncated for file in files):
        facts["truncated"] = True
    return facts
