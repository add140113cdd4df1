"""``fffs info``: describes a source, or tells where the bytes of a file in a mount come from."""

from __future__ import annotations

import argparse
import json
import os
import stat
from typing import Any

from fffs.base.numbers import unique
from fffs.base.paths import PathLike
from fffs.base.text import human, plural
from fffs.cli.output import put, say, warn
from fffs.errors import Exit, MountError
from fffs.files.verity import look
from fffs.formats.part_names import sets_among
from fffs.layouts import load_source
from fffs.layouts.view import TreeView
from fffs.mount.system import questions
from fffs.mount.system.mounts import mount_of
from fffs.native import engine
from fffs.native.checksums import CHECKSUMS

LAYOUTS = {
    "packed": "packed folder",
    "union": "union of packed folders",
    "plain": "record file",
    "granular": "granular data set",
}


ASK_SECONDS = 10.0
IN_KERNEL = "a mount by the kernel does not verify while it is read; fffs verify SOURCE does"


def run(args: argparse.Namespace) -> int:
    """Describe a source, or files and folders in a mount."""
    found = mounted = _describe_all_mounted(args.source) if args.format is args.prefix is None else []
    if not mounted:
        with load_source(args.source, format=args.format, prefix=args.prefix) as source:
            warn(source.warnings)
            found = [describe(source)]
    if args.json:
        put(json.dumps(found if len(found) > 1 else found[0], indent=1).encode() + b"\n")
        return Exit.OK
    for k, facts in enumerate(found):
        if k:
            say("")
        if not mounted and sum(one["parts"] for one in facts.get("sets", ())) == len(facts["sources"]):
            del facts["sources"]  # there may be hundreds
        for key, value in facts.items():
            say(f"{key.replace('_', ' ') + ':':20}{_readable(key, value)}")
    return Exit.OK


def _describe_all_mounted(paths: list[str]) -> list[dict[str, Any]]:
    """Describe files and folders in mounts; return nothing unless all are. Raises as ``describe_mounted``."""
    found = []
    for path in paths:
        facts = describe_mounted(path)
        if facts is None:
            return []
        found.append({"path": path, **facts} if len(paths) > 1 else facts)
    return found


def describe_mounted(path: PathLike) -> dict[str, Any] | None:
    """Ask the daemon of a mount what a file or folder in it is made of; None if the path is not in a mount of fffs.

    Raises:
        MountError: the daemon does not answer, or not as one of fffs does, or this user may not ask.

    """
    name = os.fsdecode(path)
    answer = questions.within(ASK_SECONDS, lambda: _ask(name))
    if isinstance(answer, OSError):
        raise MountError(f"{name}: {answer.strerror}")
    if answer is None:
        raise MountError(f"{name}: its file system does not answer")
    return answer[0]


def _ask(path: str) -> tuple[dict[str, Any] | None]:
    """As ``describe_mounted``, but waits for the daemon as long as it takes. Raises OSError."""
    real = os.path.realpath(path)
    try:
        fd = os.open(real, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return (None,)  # the source is opened by its name, and that error says why it cannot be
    try:
        mount = mount_of(fd)
    except (OSError, MountError):  # /proc is not mounted
        mount = None
    finally:
        os.close(fd)
    if mount is None or not mount.ours:
        return (None,)
    if mount.in_kernel:
        what = "folder" if stat.S_ISDIR(os.stat(real).st_mode) else "file"
        return ({"mount": mount.path, "kind": what, "source": mount.origin, "verified": False, "note": IN_KERNEL},)
    folder, name = (real, "") if stat.S_ISDIR(os.stat(real).st_mode) else os.path.split(real)
    facts = questions.read_facts(folder, questions.ENTRY + os.fsencode(name))
    ours = {"mount": mount.path, "kind": "folder" if name == "" else "file"}
    if facts.keys() & {"path", *ours} or not all(isinstance(value, str) for value in facts.values()):
        raise questions.malformed()
    return ({**ours, **facts},)


def _sets(source: TreeView) -> list[dict[str, Any]]:
    """Describe the sets of packs that the files of a source belong to."""
    sizes = {file.index.path: file.index.file_size for file in source.store.files}
    sets = []
    for name, parts in sets_among(sizes).items():
        of = [sizes[part] for part in parts]
        sets.append({"name": name, "parts": len(parts), "smallest_bytes": min(of), "largest_bytes": max(of)})
    return sets


def _readable(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if key == "sets":
        forms = "{} ({}, from {} to {})".format
        sizes = ("smallest_bytes", "largest_bytes")
        return ", ".join(
            forms(one["name"], plural(one["parts"], "part"), *(human(one[size]) for size in sizes)) for one in value
        )
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value} ({human(value)})" if key.endswith("bytes") else str(value)


def _checksums(check: int) -> str:
    return f"{CHECKSUMS[check].title} per record" if check in CHECKSUMS else "none (not verifiable)"


def _padding(source: TreeView) -> int:
    """Return how many records of a pack are neither the content of a file nor the tree."""
    tree = source.tree
    return source.store.n - len(unique(tree.ref[tree.kinds == stat.S_IFREG])) - 1


def describe(source: TreeView) -> dict[str, Any]:
    """Return facts about a source, by name."""
    tree, files = source.tree, source.store.files
    kinds = tree.kinds
    facts: dict[str, Any] = {
        "sources": [file.index.path for file in files],
        **({"sets": sets} if (sets := _sets(source)) else {}),
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
            "modes_and_times": all(file.index.blocks is not None for file in files),  # has a trailer
            "aligned": all(file.index.alignment for file in files),
            "block_checksums": sum(len(file.index.blocks.checksums) for file in files if file.index.blocks),
        }
    if source.layout == "packed" and files[0].index.alignment:
        facts["padding_records"] = _padding(source)
    if any(digests := [str(look(file.file)) for file in files]):
        facts["fs_verity"] = [digest or "no" for digest in digests]
    if any(file.index.truncated for file in files):
        facts["truncated"] = True
    return facts
