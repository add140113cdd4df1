"""Writes the seeds of a fuzz target, made from the golden files: python -m fuzz.seeds TARGET FOLDER."""

from __future__ import annotations

import itertools
import random
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from builders import DTYPES, MAGIC, PROTO, Pack, Trailer, dictionary, number, text, whole
from golden_files import GOLDEN

from fuzz import fuzz_archive, fuzz_bag, fuzz_granular, fuzz_rows, fuzz_trailer, make_bad, packs, seeds_frames

LARGEST = 20_000  # larger golden files would only be slow

Seeds = Iterator[tuple[str, bytes]]


def golden_files() -> Seeds:
    """Yield the small golden files."""
    for name in GOLDEN.of_kind("records", "packed"):
        data = GOLDEN.bytes(name)
        if len(data) <= LARGEST:
            yield name.replace("/", "-"), data


def golden_packs() -> Iterator[tuple[str, Pack]]:
    """Yield the golden packed folders and similar ones."""
    for name in GOLDEN.of_kind("packed"):
        yield name.replace("/", "-"), Pack.parse(GOLDEN.bytes(name))
    yield "small", packs.pack(packs.small())
    yield "chain", packs.pack(packs.chain(40, b"nested folder"))
    yield "flat", packs.pack(packs.flat_files(30))


def folder_of(pickle: bytes) -> packs.Folder:
    """Return the tree of record numbers in a pickle."""
    root: packs.Folder = {}
    for path, record in sorted(packs.unpickled(pickle).items()):
        *above, name = path.split(b"/")
        here = root
        for part in above:
            here = here[part]
        here[name] = {} if record is None else record
    return root


def trailer_of(pack: Pack) -> Trailer:
    """Return the trailer of a pack, or the one that fits its pickle."""
    return pack.trailer or packs.trailer(folder_of(pack.pickle), pack.records)


def header() -> Seeds:
    for name, data in golden_files():
        for mode in (0, 1, 3):
            yield f"{name}-{mode}", bytes([mode]) + data
    for made in (make_bad.headers_refused(), make_bad.offsets_refused(), make_bad.records_reported()):
        for name, data in made:
            yield name, b"\x01" + data


def packed() -> Seeds:
    for name, data in golden_files():
        yield f"{name}-checked", b"\x01" + data
        yield f"{name}-mended", b"\x03" + data
    for name, pack in golden_packs():
        lossless = Pack(pack.records, pack.pickle, trailer_of(pack)).build()
        if len(lossless) <= LARGEST:
            yield f"{name}-lossless", b"\x07" + lossless
            yield f"{name}-unchecked", b"\x00" + lossless
    for made in (make_bad.records_reported(), make_bad.trees_reported(), make_bad.packed_refused()):
        for name, data in made:
            if "storm" not in name:  # slow
                yield name, b"\x01" + data


def pickle() -> Seeds:
    for name, pack in golden_packs():
        yield name, pack.pickle
    yield "setitem", whole(dictionary()[:-2] + text("name") + number(3) + b"s")
    memoised = (
        b"\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94(\x8c\x01a\x94K\x01\x8c\x01b\x94h\x02)R\x94"
    )
    yield "protocol-4", PROTO + memoised + b"(h\x04M\x00\x01h\x05\x8a\x01\x7fuu."
    # Invalid values that resemble valid ones.
    for name, value in make_bad.hostile_values():
        yield f"value-{name}", make_bad.one(value)
    for name, data in make_bad.hostile_names():
        yield f"name-{name}", make_bad.named(data)
    for name, data in make_bad.structures():
        yield f"structure-{name}", data
    yield "framed", PROTO + b"\x95" + struct.pack("<Q", len(memoised) + 2) + memoised + b"u."


def tree() -> Seeds:
    for name, pack in golden_packs():
        trailer = trailer_of(pack)
        yield f"{name}-arrays", b"\x00" + tree_arrays(trailer, len(pack.records))
        if len(trailer.arrays["mode"]) < 256:
            yield f"{name}-entries", b"\x01" + tree_entries(trailer, 1)
        yield f"{name}-wide", b"\x02" + tree_entries(trailer, 2)
    for length in (4095, 4096):
        pack = packs.pack(packs.long_path(length))
        assert pack.trailer is not None
        yield f"path-of-{length}", b"\x00" + tree_arrays(pack.trailer, 1)
        yield f"path-of-{length}-entries", b"\x01" + tree_entries(pack.trailer, 1)
    for above in ([1], [2, 1], [3, 1, 2]):
        pack = make_bad.circle(above)
        assert pack.trailer is not None
        yield f"circle-of-{len(above)}", b"\x00" + tree_arrays(pack.trailer, 1)
    for name, change in make_bad.trailer_changes():
        pack = packs.pack(packs.small())
        assert pack.trailer is not None
        change(pack.trailer)
        if not pack.trailer.counts and pack.trailer.size is None:
            yield f"change-{name}", b"\x00" + tree_arrays(pack.trailer, len(pack.records))


def tree_arrays(trailer: Trailer, records: int) -> bytes:
    """Encode the arrays as tests/fuzz/c/tree.c expects them."""
    counts = trailer.true_counts()
    sizes = (counts["nodes"], counts["entries"], counts["names"], counts["targets"], records)
    columns = list(DTYPES)[: list(DTYPES).index("targets") + 1]
    return struct.pack("<5H", *sizes) + b"".join(trailer.arrays[name].tobytes() for name in columns)


def tree_entries(trailer: Trailer, width: int) -> bytes:
    """Encode the entries as tests/fuzz/c/tree.c expects them, last ones first."""
    arrays = {name: array.tolist() for name, array in trailer.arrays.items()}
    kinds = {0o040000: 0, 0o100000: 1, 0o120000: 2}
    out = len(arrays["mode"]).to_bytes(width, "little") + len(arrays["entry_nodes"]).to_bytes(width, "little")
    out += bytes([len(arrays["targets"])]) + bytes(arrays["targets"])
    for node, mode in enumerate(arrays["mode"]):
        kind = kinds[mode & 0o170000]
        out += bytes([kind, *([arrays["ref"][node] & 255] * (kind > 0)), *([arrays["count"][node]] * (kind > 1))])
    names = b""
    for directory, mode in enumerate(arrays["mode"]):
        if kinds[mode & 0o170000] != 0:
            continue
        first = arrays["ref"][directory]
        for entry in reversed(range(first, first + arrays["count"][directory])):
            out += directory.to_bytes(width, "little") + arrays["entry_nodes"][entry].to_bytes(width, "little")
            name = bytes(arrays["names"][arrays["name_offsets"][entry] : arrays["name_offsets"][entry + 1]])
            names += bytes([len(name)]) + name
    return out + names


def store() -> Seeds:
    """Yield files and steps as tests/fuzz/c/store.c expects them."""
    none = b"\x00"  # a file without records
    three = b"\x03" + b"\x00\x7f" + b"\x00\x85" + b"\x08\x85\x00"  # 127 bytes, over a block, the same with a table
    other = b"\x42" + b"\x00\x7f" + b"\x00\x85" + b"\x00\x85"  # the same with CRC-32C, therefore without a table
    inside = (5, 0x2000, 0x102000)  # a byte of each record
    read, damage, cut, mend, ask, time = 4, 0, 1, 2, 3, 7
    everything = bytes([196, 0, 0]) + bytes([240, 0, 0, 48]) + b"\x00"
    later = bytes([time | 16 << 3])  # 64 seconds
    for k, flags in itertools.product(range(3), range(4)):
        name, file = f"{k}-{flags}", (other if flags == 0 and k < 2 else three) + none + none
        reads = bytes([read | k << 3, 3, 240, 0, 48, 0, flags, read | k << 3, 0, 240, 1, 0, 16, flags])
        # Damage that changes the times, or not; applied twice, it is undone.
        seen, unseen = (bytes([damage, *inside[k].to_bytes(3, "little"), 1 | how]) for how in (0, 128))
        asked = bytes([ask | k << 3])
        yield f"reads-{name}", file + reads * 2 + asked
        yield f"damaged-{name}", file + asked + reads + seen + asked + reads + bytes([mend]) + reads
        yield f"cut-{name}", file + reads + bytes([cut, 0, 0, 20]) + reads + bytes([mend]) + reads + asked
        yield f"rested-{name}", file + later + reads * 2 + seen + reads + seen + reads + later + reads + asked + reads
        yield f"rested-cut-{name}", file + later + reads + bytes([cut, 0, 0, 0]) + reads
        yield f"unseen-{name}", file + seen * 2 + reads + (unseen + reads) * 2
        yield f"unseen-rested-{name}", file + later + reads + seen * 2 + reads + (unseen + reads) * 2 + later + reads
        yield f"unseen-later-{name}", file + seen * 2 + reads + unseen + later + reads * 2
    yield "files", three + three + none + b"".join(bytes([read | k << 3]) + everything for k in range(7))
    unchecked = b"\x82" + b"\x00\x84" + b"\x00\x86"
    yield "unchecked", unchecked + none + none + bytes([read]) + everything + bytes([read | 8]) + everything
    chance = random.Random(20240611)
    for k in range(20):
        yield f"random-{k}", chance.randbytes(30 + 10 * k)


def fastpath() -> Seeds:
    """Yield messages as tests/fuzz/c/fastpath.c expects them; opcodes are positions in its table."""
    places = {"lookup": 0, "getattr": 1, "read": 2, "readdir": 3, "readdirplus": 4, "readlink": 5, "forget": 6}
    places |= {"interrupt": 8, "open": 9, "opendir": 10, "flush": 11, "getxattr": 12, "init": 13, "statfs": 14}

    def message(what: str, node: int, body: bytes = b"", lie: int = 0) -> bytes:
        return bytes([7, places[what], node, lie]) + struct.pack("<H", len(body)) + body

    def read(what: str, node: int, offset: int, size: int) -> bytes:
        return message(what, node, struct.pack("<QQIIQII", 0, offset, size, 0, 0, 0, 0))

    names = b"".join(
        message("lookup", 1, name + b"\0") for name in (b"a", b"b", b"g", b"h", b"none", b".", b"..", b"x" * 256)
    )
    yield "names", names
    yield "below", message("lookup", 4, b"e\0") + message("lookup", 4, b"f\0") + message("lookup", 2, b"a\0")
    yield "name-without-end", message("lookup", 1, b"a") + message("lookup", 1) + message("lookup", 1, b"\0")
    yield "attributes", b"".join(message("getattr", node, bytes(16)) for node in range(9))
    for node in (1, 2, 3, 5, 6, 7):
        yield f"reads-{node}", b"".join(read("read", node, at, size) for at, size in ((0, 9000), (4000, 4096), (1, 0)))
    yield "read-far", read("read", 2, 2**63, 5) + read("read", 6, 2**64 - 1, 2**32 - 1) + read("read", 6, 1000, 65536)
    for what in ("readdir", "readdirplus"):
        offsets = (0, 1, 2, 5, 6, 7, 2**63, 2**64 - 1)
        yield what, b"".join(read(what, 1, at, 4096) for at in offsets)
        yield f"{what}-short", b"".join(read(what, 4, 0, size) for size in (0, 23, 24, 31, 32, 151, 152, 160, 320))
    yield "links", b"".join(message("readlink", node) for node in (1, 2, 5, 8))
    yield "opened", b"".join(message("open", 2, struct.pack("<II", flags, 0)) for flags in (0, 1, 2, 512, 0o2000000))
    yield "folder", message("opendir", 1, bytes(8)) + message("flush", 2, bytes(24)) + message("forget", 2, bytes(8))
    yield (
        "attribute",
        message("getxattr", 2, bytes(8) + b"user.fffs.crc32\0") + message("getxattr", 2, bytes(8) + b"x\0"),
    )
    yield "attribute-cut", message("getxattr", 2, bytes(8) + b"security.capability") + message("getxattr", 2, bytes(7))
    yield (
        "begin",
        message("init", 0, struct.pack("<IIIIII", 7, 39, 1 << 17, 0xFFFFFFFF, 0, 0) + bytes(40)) + bytes([64]),
    )
    yield (
        "forwarded",
        message("statfs", 1) + bytes([80]) + bytes(96) + message("statfs", 8) + message("interrupt", 0, bytes(8)),
    )
    for lie, more in ((230, struct.pack("<I", 41)), (200, b"\x10\x00"), (225, b"\xff\xff\xff\xff")):
        head = bytes([7, places["read"], 2, lie]) + struct.pack("<H", 40)
        yield f"lie-{lie}", head + (more if lie >= 224 else b"") + bytes(40) + (more if lie < 224 else b"")


def trailer() -> Seeds:
    chance = random.Random(20240612)
    for base in range(len(fuzz_trailer.BASES)):
        yield f"base-{base}", bytes([base])
        for what in range(32):
            yield f"base-{base}-edit-{what}", bytes([base, what]) + chance.randbytes(8)


def tar() -> Seeds:
    for k, (name, data) in enumerate(fuzz_archive.seeds().items()):
        if name.startswith("tar-"):
            yield name, struct.pack("<H", 60 * k) + data[1:]


TARGETS: dict[str, Callable[[], Seeds]] = {
    "pickle": pickle,
    "tree": tree,
    "store": store,
    "fastpath": fastpath,
    "tar": tar,
    "header": header,
    "packed": packed,
    "trailer": trailer,
    "bag": lambda: iter(fuzz_bag.seeds().items()),
    "granular": lambda: iter(fuzz_granular.seeds().items()),
    "archive": lambda: iter(fuzz_archive.seeds().items()),
    "tfrecord": seeds_frames.tfrecord,
    "ofrecord": seeds_frames.ofrecord,
    "rows": lambda: iter(fuzz_rows.seeds().items()),
}
assert MAGIC == b"piouhjgbr"

if __name__ == "__main__":
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for seed, data in TARGETS[sys.argv[1]]():
        (folder / seed).write_bytes(data)
