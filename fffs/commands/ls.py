"""``fffs ls``."""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any

from fffs.cli import OK
from fffs.layouts import Source, load_source

TYPES = {stat.S_IFDIR: "dir", stat.S_IFREG: "file", stat.S_IFLNK: "link"}


def run(args: argparse.Namespace) -> int:
    """List names, in the order of their bytes."""
    with load_source([args.source]) as source:
        found = (item for path in args.path or [""] for item in _find(source, os.fsencode(path), args.recursive))
        if args.json:
            json.dump([_describe(source, path, node) for path, node in found], sys.stdout, indent=1)
            print()
            return OK
        out = sys.stdout.buffer
        readable = sys.stdout.isatty()
        for path, node in found:
            line = _long(source, node) if args.long else b""
            out.write(line + (_printable(path) if readable else path))
            if args.long and source.tree.is_symlink(node):
                target = source.tree.target(node)
                out.write(b" -> " + (_printable(target) if readable else target))
            out.write(b"\n")
        out.flush()
    return OK


def _find(source: Source, path: bytes, recursive: bool) -> Iterator[tuple[bytes, int]]:
    """What is to be shown for a path: a file itself, a folder's entries relative to it."""
    node = source.tree.find(path)
    if not source.tree.is_dir(node):
        yield path, node
    elif recursive:
        yield from source.tree.walk(node)
    else:
        yield from source.tree.entries(node)


def _size(source: Source, node: int) -> int:
    tree = source.tree
    return source.store.length(tree.record(node)) if tree.is_file(node) else int(tree.count[node])


def _long(source: Source, node: int) -> bytes:
    tree = source.tree
    mode = stat.filemode(int(tree.mode[node]))
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(int(tree.mtime[node]) / 1e9))
    return f"{mode} {tree.nlink[node]:3d} {_size(source, node):12d} {when} ".encode()


def _printable(name: bytes) -> bytes:
    """A name that cannot move the cursor of a terminal: control characters escaped."""
    text = name.decode("utf-8", "backslashreplace")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text).encode()


def _describe(source: Source, path: bytes, node: int) -> dict[str, Any]:
    tree, store = source.tree, source.store
    described: dict[str, Any] = {
        "path": os.fsdecode(path),
        "type": TYPES[stat.S_IFMT(int(tree.mode[node]))],
        "mode": f"{stat.S_IMODE(int(tree.mode[node])):04o}",
        "nlink": int(tree.nlink[node]),
        "mtime_ns": int(tree.mtime[node]),
        "size": _size(source, node),
    }
    if tree.is_file(node):
        file, row = store.locate(tree.record(node))
        crc = store.checksum(tree.record(node))
        described |= {"record": row, "source": file.index.path, "crc32": None if crc is None else f"{crc:08x}"}
    if tree.is_symlink(node):
        described["target"] = os.fsdecode(tree.target(node))
    return described
