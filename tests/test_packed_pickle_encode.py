"""The pickle that fffs writes into a packed folder: the bytes of a slow encoder in Python, which ffrecord reads."""

from __future__ import annotations

import pickle
import struct
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
from builders import MAGIC, unpickle
from hypothesis import example, given, settings
from hypothesis import strategies as st
from inside import ROOT, Tree, TreeBuilder, packed_pickle

RECORDS = 2**32 - 1
EDGES = [0, 255, 256, 65535, 65536, 2**31 - 1, 2**31, RECORDS - 1]

Nested = dict[bytes, Any]

BYTES = st.binary(min_size=1, max_size=5) | st.text(min_size=1, max_size=3).map(
    lambda text: text.encode("utf-8", "ignore")
)
# Also the encodings of surrogates, overlong forms, numbers above U+10FFFF and incomplete sequences.
ODD = [
    b"\xed\xb2\x80",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\xe0\x80\x80",
    b"\xf0\x80\x80\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
]
PARTS = BYTES | st.sampled_from([*ODD, b"\xff", b"\x80", "é".encode(), "€".encode(), "😀".encode(), b"a"])
NAMES = (
    st.lists(PARTS, min_size=1, max_size=4)
    .map(lambda parts: b"".join(parts).replace(b"/", b"").replace(b"\0", b""))
    .filter(lambda name: name not in (b"", b".", b".."))
)
TARGETS = st.sampled_from([b"a", b"b", b"../a", b"a/b", b"./a/../b", b"..", b"/a", b"missing"])
FILES = st.integers(0, RECORDS - 1) | st.sampled_from(EDGES)
# Few names, so that links often lead somewhere; and any names.
KEYS = st.sampled_from([b"a", b"b", b"c"]) | NAMES
NESTED = st.recursive(FILES | TARGETS, lambda below: st.dictionaries(KEYS, below, max_size=5), max_leaves=25)


def build(root: Nested) -> Tree:
    builder = TreeBuilder()
    todo = [(ROOT, root)]
    while todo:
        parent, items = todo.pop()
        for name, value in items.items():
            if isinstance(value, dict):
                todo.append((builder.add_directory(parent, name), value))
            elif isinstance(value, bytes):
                builder.add_symlink(parent, name, value)
            else:
                builder.add_file(parent, name, value)
    return builder.build(RECORDS, "test")


def encode(tree: Tree) -> bytes:
    return packed_pickle.encode(tree).tobytes()


def model(tree: Tree) -> bytes:
    return MAGIC + b"\x80\x02ccollections\nOrderedDict\nq\0" + dictionary(tree, ROOT, b"") + b"."


def dictionary(tree: Tree, node: int, prefix: bytes) -> bytes:
    return b")R(" + b"".join(items(tree, node, prefix)) + b"u"


def items(tree: Tree, node: int, prefix: bytes) -> Iterator[bytes]:
    for name, child in tree.entries(node):
        text = name.decode("utf-8", "surrogateescape").encode("utf-8", "surrogatepass")
        key = b"X" + struct.pack("<I", len(text)) + text
        target = tree.follow(prefix + name)
        if tree.is_dir(child):
            yield key + b"h\0" + dictionary(tree, child, prefix + name + b"/")
        elif target is not None and tree.is_file(target):
            yield key + integer(tree.record(target))


def integer(value: int) -> bytes:
    if value < 2**31:
        return pickle.dumps(value, 2)[2:-1]
    return b"\x8a\x05" + value.to_bytes(5, "little")


def names(tree: Tree, node: int = ROOT, prefix: bytes = b"") -> OrderedDict[str, Any]:
    """Return the tree as ffrecord has it in memory."""
    found: OrderedDict[str, Any] = OrderedDict()
    for name, child in tree.entries(node):
        key, target = name.decode("utf-8", "surrogateescape"), tree.follow(prefix + name)
        if tree.is_dir(child):
            found[key] = names(tree, child, prefix + name + b"/")
        elif target is not None and tree.is_file(target):
            found[key] = tree.record(target)
    return found


@given(root=st.dictionaries(KEYS, NESTED, max_size=6))
@example({name: k for k, name in enumerate(ODD)})
@example({b"%d" % record: record for record in EDGES})
@example({b"d": {b"l": b"../f", b"m": b"l", b"n": b"n", b"o": b".."}, b"f": 3, b"g": b"d/m", b"h": b"d", b"i": b"no"})
@settings(max_examples=150)
def test_the_bytes_are_those_of_a_slow_encoder(root: Nested) -> None:
    tree = build(root)
    assert encode(tree) == model(tree)
    assert unpickle(encode(tree)[len(MAGIC) :]) == names(tree)


def test_every_pair_of_bytes_in_a_name() -> None:
    pairs = {bytes([a, b]): 0 for a in range(1, 256) for b in range(1, 256)}
    rest = {bytes([0xED, a, b]): 0 for a in range(0x80, 0xC0) for b in range(0x7F, 0xC1)}
    tree = build({name: 0 for name in {**pairs, **rest} if b"/" not in name and name != b".."})
    assert encode(tree) == model(tree)


@pytest.mark.parametrize("name", [b"\xff" * 255, b"a" * 255, "é".encode() * 127, b"\xf0\x9f\x98" * 85])
def test_the_longest_names(name: bytes) -> None:
    tree = build({name: {name: 1}})
    assert encode(tree) == model(tree)


def test_the_deepest_tree() -> None:
    """A path has at most 4095 bytes, so 2047 folders with names of one byte, and a name in the last one."""
    d, g, folder = b"X\1\0\0\0d", b"X\1\0\0\0gK\7", b"h\0)R("
    cases: list[tuple[Any, bytes]] = [(5, b"K\5"), ({}, folder + b"u"), (b"../g", b"K\7")]
    for leaf, expected in cases:
        root: Nested = {b"d": {b"d": leaf}, b"g": 7}
        for _ in range(2046):
            root = {b"d": root}
        written = encode(build(root))
        begin = model(build({})).removesuffix(b"u.")
        assert written == begin + (d + folder) * 2047 + d + expected + b"u" + g + b"u" * 2047 + b"."


def test_encoding_needs_no_memory_but_for_the_result() -> None:
    tree = build({b"%08d" % k: k for k in range(10_000)})
    tracemalloc.start()
    try:
        size = packed_pickle.encode(tree).nbytes
        assert tracemalloc.get_traced_memory()[1] < size + 20_000
    finally:
        tracemalloc.stop()
