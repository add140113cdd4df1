"""``fffs ls``."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shlex
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any

from fffs.cli.output import put, warn
from fffs.errors import Exit
from fffs.layouts import load_source
from fffs.layouts.view import TreeView, not_found
from fffs.native.checksums import CHECK_CRC32, CHECKSUMS

# What ls(1) quotes among printable characters: those that mean something to a shell.
QUOTED = re.compile(r"""[][\s"'\\$`!*?(){}<>|&;#^]|^[~-]""")
TYPES = {stat.S_IFDIR: "dir", stat.S_IFREG: "file", stat.S_IFLNK: "link"}


def run(args: argparse.Namespace) -> int:
    """List names, sorted by their bytes."""
    with load_source(args.source, format=args.format, prefix=args.prefix) as source:
        warn(source.warnings)
        folders = [_resolve(source, args.source, os.fsencode(path)) for path in args.path or [""]]
        if args.json:
            _print_json(source, folders, args.recursive)
        else:
            _print(source, folders, args.recursive, args.long)
    return Exit.OK


def _resolve(source: TreeView, shown: str, path: bytes) -> tuple[bytes, int]:
    """Return the normalised path and its node. Links in it, and a last link to a folder, are followed, as in ls(1)."""
    tree = source.tree
    plain = b"/".join(part for part in path.split(b"/") if part not in (b"", b"."))
    node = None if path.startswith(b"/") else tree.follow(plain)
    if node is not None and tree.is_dir(node):
        return plain, node
    node = tree.locate(path)
    if node is None:
        raise not_found(os.fsdecode(path), shown)
    return plain, node


def _entries(source: TreeView, path: bytes, node: int, recursive: bool) -> Iterator[tuple[bytes, int]]:
    """Yield what to list for a path: the entries of a folder, with names relative to it, or the file itself."""
    if not source.tree.is_dir(node):
        return iter([(path, node)])
    return source.tree.walk(node) if recursive else source.tree.entries(node)


def _print_json(source: TreeView, folders: list[tuple[bytes, int]], recursive: bool) -> None:
    """Print one JSON array, entry by entry: a tree may have millions of names."""
    before = b"[\n "
    for path, node in folders:
        prefix = path + b"/" if path and source.tree.is_dir(node) else b""
        for name, child in _entries(source, path, node, recursive):
            put(before + json.dumps(_describe(source, prefix + name, child)).encode())
            before = b",\n "
    put(b"\n]\n" if before.startswith(b",") else b"[]\n")


def _print(source: TreeView, folders: list[tuple[bytes, int]], recursive: bool, long: bool) -> None:
    # Names are quoted for a terminal, so that they cannot control it; a file or a pipe gets them unchanged.
    show = _quoted if sys.stdout is not None and sys.stdout.isatty() else bytes
    for k, (path, node) in enumerate(folders):
        if len(folders) > 1 and source.tree.is_dir(node):
            put((b"\n" if k else b"") + show(path or b".") + b":\n")
        for name, child in _entries(source, path, node, recursive):
            target = b" -> " + show(source.tree.target(child)) if long and source.tree.is_symlink(child) else b""
            put((_long(source, child) if long else b"") + show(name) + target + b"\n")


def _size(source: TreeView, node: int) -> int:
    tree = source.tree
    return source.store.length(tree.record(node)) if tree.is_file(node) else int(tree.count[node])


def _long(source: TreeView, node: int) -> bytes:
    tree = source.tree
    mode = stat.filemode(int(tree.mode[node]))
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(int(tree.mtime[node]) / 1e9))
    return f"{mode} {tree.nlink[node]:3d} {_size(source, node):12d} {when} ".encode()


def _quoted(name: bytes) -> bytes:
    """Quote a name as ls(1) does on a terminal: shells understand it, and no other name looks the same."""
    text = name.decode("utf-8", "surrogateescape")
    if text.isprintable() and not QUOTED.search(text):
        return text.encode()
    runs = itertools.groupby(text, key=str.isprintable)
    return "".join(_quoted_run("".join(run), plain) for plain, run in runs).encode()


def _quoted_run(run: str, plain: bool) -> str:
    if plain:
        return shlex.quote(run) if "'" in run else f"'{run}'"
    return (
        "$'" + "".join(f"\\{byte:03o}" for byte in run.encode("utf-8", "surrogateescape")).replace("\\012", "\\n") + "'"
    )


def _describe(source: TreeView, path: bytes, node: int) -> dict[str, Any]:
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
        kind = CHECKSUMS.get(file.index.check, CHECKSUMS[CHECK_CRC32])
        described |= {"record": row, "source": file.index.path, kind.name: None if crc is None else f"{crc:08x}"}
    if tree.is_symlink(node):
        described["target"] = os.fsdecode(tree.target(node))
    return described
