"""Fuzzes archives as sources of packed folders: the pack has everything in the archive, or the archive is refused.

Input: one byte (the kind of the rest; 4: also read the result back), then the rest: a tar or zip file, or a recipe for
the members of a tar archive, which tarfile reads as well.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from archives import END, extended, padded, tar_file, tar_header
from inside import load_source, streams

from fffs import PackedFolder, convert
from fffs.errors import FffsError
from fuzz import fuzz_bag, packs, surface
from fuzz.cursor import Cursor

TAR, ZIP, RECIPE, COMPRESSED = range(4)
XZ, XZ_MEMORY = lzma.FORMAT_XZ, 64 << 20
LARGEST = 8 << 20  # bytes in an archive; larger ones are only slow
MEMBERS = 8
NAMES = (b"a", b"b", b"a/b", b"a/b/c", b"./a", b"/b", b"a/", b"a//c", b"../a", b"a/..", b".", b"\xff", b"n" * 99, b"c")
KINDS = (b"0", b"1", b"2", b"5", b"\0", b"7", b"3", b"6")
COMPRESS: tuple[Callable[[bytes], bytes], ...] = (gzip.compress, bz2.compress, lzma.compress)


class _RefusedError(Exception):
    """The archive must not be packed."""


# ---------------------------------------------------------------- recipes


def recipe(cursor: Cursor) -> bytes:
    """Return an archive with right headers, and any members that the input names."""
    out = b""
    for _ in range(MEMBERS):
        if not cursor:
            break
        what, name, target = cursor.take(1), NAMES[cursor.take(1) % len(NAMES)], NAMES[cursor.take(1) % len(NAMES)]
        kind = KINDS[what % len(KINDS)]
        content = b"%d" % len(out) * (what >> 5) if kind in (b"0", b"\0", b"7") and not name.endswith(b"/") else b""
        if what & 8:
            name += b"/" + b"l" * 120
            if what & 16:
                out += extended(path=name, mtime=b"-1.5")
            else:
                out += tar_file(b"long", name + b"\0", kind=b"L")
            if kind == b"\0" and name[99:100] == b"/":
                kind = b"0"  # tarfile would take the rest of the header for the name of a folder
        out += tar_header(name[:100], len(content), kind, target[:100]) + padded(content)
    return out + END


# ---------------------------------------------------------------- the expected folder, by tarfile


LEFT_OUT = object()  # in place of a device or FIFO, and of links to it


def expected(data: bytes) -> packs.Folder:
    """Return the folder that the members describe, with files as bytes."""
    root: packs.Folder = {}
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            entry: Any
            parts = parts_of(member.name)
            if member.isdir() or (member.isreg() and member.name.endswith("/")):
                make_folder(root, parts)
                continue
            if member.isdev():
                entry = LEFT_OUT
            elif member.issym():
                entry = packs.Link(member.linkname.encode("utf-8", "surrogateescape"))
            elif member.islnk():
                entry = find(root, parts_of(member.linkname))
            else:
                file = archive.extractfile(member)
                assert file is not None
                entry = file.read()
            put(root, parts, entry)
    return without_left_out(root)


def without_left_out(folder: packs.Folder) -> packs.Folder:
    """Return a folder without the members that are left out."""
    return {
        name: without_left_out(entry) if isinstance(entry, dict) else entry
        for name, entry in folder.items()
        if entry is not LEFT_OUT
    }


def parts_of(name: str) -> list[bytes]:
    """Return the names in a path."""
    parts = [part for part in name.encode("utf-8", "surrogateescape").split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise _RefusedError
    return parts


def make_folder(root: packs.Folder, parts: list[bytes]) -> packs.Folder:
    """Return the folder at a path. Makes it if it is missing."""
    for part in parts:
        root = root.setdefault(part, {})
        if not isinstance(root, dict):
            raise _RefusedError
    return root


def find(root: packs.Folder, parts: list[bytes]) -> Any:
    """Return the file or link to which a hard link refers."""
    found: Any = root
    for part in parts:
        found = found.get(part) if isinstance(found, dict) else None
    if found is None or isinstance(found, dict):
        raise _RefusedError
    return found


def put(root: packs.Folder, parts: list[bytes], entry: Any) -> None:
    """Put a file or link at a path, in place of an existing one."""
    if not parts:
        raise _RefusedError
    folder = make_folder(root, parts[:-1])
    old = folder.get(parts[-1])
    if isinstance(old, dict) and old:
        raise _RefusedError
    folder[parts[-1]] = entry


# ---------------------------------------------------------------- the invariants


def is_small(data: bytes) -> bool:
    """Whether an archive is small enough to be packed in a short time."""
    for make in (lambda: zlib.decompressobj(31), bz2.BZ2Decompressor, lambda: lzma.LZMADecompressor(XZ, XZ_MEMORY)):
        try:
            if len(make().decompress(data, LARGEST)) >= LARGEST:
                return False
        except (zlib.error, OSError, lzma.LZMAError, EOFError, MemoryError):
            continue
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            return sum(info.file_size for info in archive.infolist()) < LARGEST
    except Exception:  # any exception of tarfile is allowed
        return True


def pack(data: bytes, kind: str, verify: bool) -> packs.Folder | None:
    """Return the packed folder that an archive becomes, with files as bytes; None if it is refused."""
    folder = fuzz_bag.folder() / "archive"
    folder.mkdir(exist_ok=True)
    source, target = folder / "source", folder / "target.ffr"
    source.write_bytes(data)
    target.unlink(missing_ok=True)
    try:
        with mock.patch.object(streams, "XZ_MEMORY", XZ_MEMORY):  # below the limit of the fuzzer
            convert(source, target, from_=kind, jobs=1, verify=verify, warn=lambda line: None)
    except FffsError as error:
        assert str(source) in str(error), "does not say which archive"
        assert "\n" not in str(error)
        assert [path.name for path in folder.iterdir()] == ["source"], "left something behind"
        return None
    assert {path.name for path in folder.iterdir()} == {"source", "target.ffr"}
    return unpacked(target)


def unpacked(target: Path) -> packs.Folder:
    """Return the content of a packed folder, after checking that it is consistent."""
    assert surface.check_file(target.read_bytes()) == "packed"
    with load_source([str(target)]) as source, PackedFolder(target) as folder:
        records = folder.reader.read(range(source.store.n))
        return replaced(surface.folder_of(source.tree), [record.tobytes() for record in records])


def replaced(folder: packs.Folder, records: list[bytes]) -> packs.Folder:
    """Return a folder with the bytes of records instead of their numbers."""

    def content(entry: Any) -> Any:
        return records[entry] if isinstance(entry, int) else entry

    return {
        name: replaced(entry, records) if isinstance(entry, dict) else content(entry) for name, entry in folder.items()
    }


def check_recipe(data: bytes, compressed: bytes, verify: bool) -> None:
    """Check that a good archive becomes the folder that tarfile finds, unless it must not be packed."""
    found = pack(compressed, "tar", verify)
    try:
        right: packs.Folder | None = expected(data)
    except _RefusedError:
        right = None
    assert found == right


def one_input(data: bytes) -> None:
    """Run the target on one input."""
    cursor = Cursor(data)
    what = cursor.take(1)
    verify = bool(what & 4)
    if what % 4 in (RECIPE, COMPRESSED):
        compress = COMPRESS[cursor.take(1) % len(COMPRESS)] if what % 4 == COMPRESSED else bytes
        made = recipe(cursor)
        check_recipe(made, compress(made), verify)
        return
    rest = cursor.rest()
    if is_small(rest):
        pack(rest, "tar" if what % 4 == TAR else "zip", verify)


def seeds() -> dict[str, bytes]:
    """Return archives of each kind, intact and damaged, and recipes."""
    chance = random.Random(20240616)
    found: dict[str, bytes] = {"tar-empty": bytes([TAR]) + END, "nothing": bytes([TAR])}
    for k in range(60):
        made = bytes([RECIPE, *chance.randbytes(3 * (k % 9))])
        found[f"recipe-{k}"] = made
        archive = recipe(Cursor(made[1:]))
        found[f"compressed-{k}"] = bytes([COMPRESSED | 4 * (k & 1), k]) + made[1:]
        for name, data in (("tar", archive), ("zip", zipped(chance)), ("gz", COMPRESS[k % 3](archive))):
            broken = bytearray(data)
            broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
            what = bytes([ZIP if name == "zip" else TAR])
            found[f"{name}-{k}"] = what + data[: 8 << 10]
            found[f"{name}-{k}-damaged"] = what + bytes(broken)[: 8 << 10]
            found[f"{name}-{k}-cut"] = what + data[: chance.randrange(len(data))][: 8 << 10]
    return found


def zipped(chance: random.Random) -> bytes:
    """Return a zip archive with some members."""
    out = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(out, "w") as archive:
        warnings.simplefilter("ignore")  # duplicate names
        for _ in range(chance.randrange(4)):
            info = zipfile.ZipInfo(chance.choice(NAMES).decode("utf-8", "replace"))
            info.external_attr = chance.choice((0, 0o100644, 0o040755, 0o120777, 0o010644)) << 16
            info.compress_type = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
            archive.writestr(info, b"content" * chance.randrange(40))
    return out.getvalue()
