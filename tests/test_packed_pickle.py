"""The pickle of a packed folder: valid ones give their tree, hostile ones give an error and run no code.

Python's unpickler, restricted to ``OrderedDict``, is the independent reader: it must get the same tree from any pickle
that fffs accepts.
"""

from __future__ import annotations

import io
import os
import pickle
import pickletools
import struct
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import (
    MAGIC,
    NEW,
    ORDERED_DICT,
    PROTO,
    STOP,
    Pack,
    dictionary,
    number,
    record_file,
    text,
    unpickle,
    whole,
)
from golden_files import GOLDEN
from hypothesis import example, given, settings
from hypothesis import strategies as st
from inside import Tree, packed_pickle

import fffs
from fffs.errors import MetadataError

RECORDS = 1000
Names = dict[bytes, int | None]  # path -> record, or None for a folder


def names(tree: Tree) -> Names:
    return {path: tree.record(node) if tree.is_file(node) else None for path, node in tree.walk()}


def decode(data: bytes, records: int = RECORDS) -> Names:
    """Return the tree that fffs decodes from a pickle."""
    return names(packed_pickle.decode(np.frombuffer(MAGIC + data, np.uint8), records, "test.ffr", 0))


def expected(root: Any, prefix: bytes = b"") -> Names:
    """Return the paths in an unpickled tree. Raises if the tree has anything else."""
    found: Names = {}
    assert type(root) is OrderedDict
    for key, value in root.items():
        assert type(key) is str
        path = prefix + os.fsencode(key)
        assert path not in found
        found[path] = value if type(value) is int else None
        if type(value) is not int:
            found |= expected(value, path + b"/")
    return found


def refused(data: bytes, reason: str | None = None) -> None:
    with pytest.raises(MetadataError, match=reason):
        decode(data)


# ---------------------------------------------------------------- good ones

NAMES = st.one_of(
    st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable()),
    st.binary(min_size=1, max_size=6).map(os.fsdecode),
    st.sampled_from(["a", "b", "é", "\udcff", "\u00e9" * 127, "x" * 255, "...", "\n"]),
).filter(lambda name: name not in (".", "..") and "/" not in name and "\0" not in name)
VALUES = st.one_of(st.sampled_from([0, 1, 255, 256, 999]), st.integers(0, RECORDS - 1))
TREES: st.SearchStrategy[Any] = st.recursive(
    st.builds(OrderedDict, st.dictionaries(NAMES, VALUES, max_size=5)),
    lambda below: st.builds(OrderedDict, st.dictionaries(NAMES, st.one_of(VALUES, below), max_size=5)),
    max_leaves=12,
)


@given(tree=TREES, protocol=st.integers(2, 5), in_python=st.booleans())
@settings(max_examples=150)
def test_whatever_a_pickler_writes_is_read(tree: OrderedDict[str, Any], protocol: int, in_python: bool) -> None:
    stream = io.BytesIO()
    pickler = pickle._Pickler if in_python else pickle.Pickler
    pickler(stream, protocol).dump(tree)
    # The unpickler makes new dictionaries, so none is shared.
    assert decode(stream.getvalue()) == expected(unpickle(stream.getvalue()))


def test_pickles_of_thousands_of_names_come_in_batches_and_are_read() -> None:
    tree = OrderedDict((f"{i}", OrderedDict(a=i % RECORDS)) for i in range(2500))
    for protocol in (2, 3, 4, 5):
        assert decode(pickle.dumps(tree, protocol)) == expected(tree)


def test_memoised_names_are_read() -> None:
    shared = "shared name"
    tree = OrderedDict((folder, OrderedDict({shared: 1})) for folder in "abc")
    for protocol in (2, 4):
        data = pickle.dumps(tree, protocol)
        assert data.count(shared.encode()) == 1
        assert decode(data) == expected(tree)


def test_optimised_pickles_are_read() -> None:
    tree = OrderedDict(a=1, b=OrderedDict(c=2))
    assert decode(pickletools.optimize(pickle.dumps(tree, 4))) == expected(tree)


def test_what_follows_the_stop_is_ignored() -> None:
    assert decode(whole(dictionary(text("a"), number(1))) + b"cos\nsystem\n") == {b"a": 1}


def test_records_may_have_several_names() -> None:
    tree = packed_pickle.decode(
        np.frombuffer(MAGIC + whole(dictionary(text("a"), number(1), text("b"), number(1))), np.uint8), 2, "x", 0
    )
    assert tree.lookup(0, b"a") == tree.lookup(0, b"b")
    assert tree.nlink.tolist() == [2, 2]


def test_numbers_are_read_in_every_width() -> None:
    for opcode, value in {
        b"K\xff": 255,
        b"M\xff\x03": 1023,
        b"J\x00\x01\x00\x00": 256,
        b"\x8a\x00": 0,
        b"\x8a\x02\xff\x00": 255,
        b"\x8a\x05\x00\x01\x00\x00\x00": 256,
        b"\x8a\x08\x01" + bytes(7): 1,
    }.items():
        assert decode(whole(dictionary(text("a"), opcode)), 2000) == {b"a": value}


@given(tree=TREES)
@settings(max_examples=100)
def test_what_fffs_writes_is_read_alike_by_both(tree: OrderedDict[str, Any]) -> None:
    stored = expected(tree)
    written = packed_pickle.encode(
        packed_pickle.decode(
            np.frombuffer(MAGIC + pickle.dumps(unpickle(pickle.dumps(tree))), np.uint8), RECORDS, "x", 0
        )
    ).tobytes()
    assert written.startswith(MAGIC)
    assert expected(unpickle(written[len(MAGIC) :])) == stored
    assert decode(written[len(MAGIC) :]) == stored


# ---------------------------------------------------------------- code

Attack = Callable[[str], bytes]


def short(string: str) -> bytes:
    return b"\x8c" + bytes([len(string)]) + string.encode()


CALL_SYSTEM: dict[str, Attack] = {
    "GLOBAL and REDUCE": lambda command: b"cos\nsystem\n" + text(command) + b"\x85R",
    "STACK_GLOBAL and REDUCE": lambda command: short("os") + short("system") + b"\x93" + text(command) + b"\x85R",
    "INST": lambda command: b"(" + text(command) + b"ios\nsystem\n",
    "OBJ": lambda command: b"(cos\nsystem\n" + text(command) + b"o",
    "builtins.eval": lambda command: b"cbuiltins\neval\n" + text(f"__import__('os').system({command!r})") + b"\x85R",
    "in the memo": lambda command: b"cos\nsystem\nq\x000h\x00" + text(command) + b"\x85R",
}
CARRIERS: dict[str, Callable[[bytes], bytes]] = {
    "alone": lambda attack: attack,
    "as a record number": lambda attack: dictionary(text("a"), attack),
    "as a name": lambda attack: dictionary(attack, number(1)),
    "as the argument of OrderedDict": lambda attack: ORDERED_DICT + attack + b"\x85R",
    "popped before the tree": lambda attack: attack + b"0" + dictionary(text("a"), number(1)),
    "after the tree": lambda attack: dictionary(text("a"), number(1)) + attack + b"0",
}


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("attack", CALL_SYSTEM)
def test_no_code_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attack: str, carrier: str) -> None:
    monkeypatch.chdir(tmp_path)
    data = whole(CARRIERS[carrier](CALL_SYSTEM[attack]("touch it-ran")))
    (tmp_path / "evil.ffr").write_bytes(record_file([b"file", MAGIC + data]))
    for opened in (fffs.PackedFolder, lambda path: fffs.load_source([path])):
        with pytest.raises(MetadataError, match="is invalid"):
            opened(tmp_path / "evil.ffr")
    with fffs.FileReader(tmp_path / "evil.ffr") as reader:
        reader.read([0, 1])
    assert os.listdir(tmp_path) == ["evil.ffr"]
    # This shows that the pickle is harmful: pickle.loads runs its code.
    try:
        pickle.loads(data)
    except Exception:
        assert "argument" in carrier or "name" in carrier
    assert sorted(os.listdir(tmp_path)) == ["evil.ffr", "it-ran"]


@pytest.mark.parametrize(
    "name",
    [
        "os\nsystem",
        "builtins\neval",
        "collections\nordereddict",
        "collections\nOrderedDict ",
        "collections.abc\nMapping",
        "collections\nOrderedDict.fromkeys",
        "collections\nnamedtuple",
        "__main__\nOrderedDict",
        "\n",
    ],
)
def test_only_ordered_dict_is_a_global(name: str) -> None:
    reason = "a global other than collections.OrderedDict"
    module, attribute = name.split("\n", 1)
    refused(whole(b"c" + name.encode() + b"\n)R(u"), reason)
    refused(whole(text(module) + text(attribute) + b"\x93)R(u"), reason)


ACCEPTED = {0x80, 0x95, 0x93, 0x8C, 0x8D, 0x8A, 0x94} | set(b"()cRXKMJqrhjsu.")


@pytest.mark.parametrize("opcode", sorted(set(range(256)) - ACCEPTED))
def test_every_other_opcode_is_refused(opcode: int) -> None:
    # The stack has all operands that the opcode could need, and its arguments are valid.
    tree = dictionary(text("a"), number(1))
    refused(PROTO + tree + bytes([opcode]) + b"\x01" * 16 + STOP, "opcode that no packed folder contains")
    refused(PROTO + ORDERED_DICT + b")" + bytes([opcode]) + b".", "opcode that no packed folder contains")


def test_ordered_dict_takes_no_arguments() -> None:
    for arguments in (text("a") + b"\x85", b"(t", b"(" + text("a") + b"t", b"]", text("a"), b"N"):
        refused(whole(ORDERED_DICT + arguments + b"R"))


def test_no_dictionary_gets_a_state() -> None:
    for opcode in (
        b"}b",
        b"]b",
        b")\x81",
        b")}\x92",
        b"P1\n",
        b"Q",
        b"\x82\x01",
        b"\x83\x01\x00",
        b"\x84\x01\x00\x00\x00",
    ):
        refused(whole(dictionary(text("a"), number(1)) + opcode), "opcode that no packed folder contains")


# ---------------------------------------------------------------- shapes


def test_a_dictionary_in_two_places_is_refused() -> None:
    shared = NEW + b"\x94(" + text("x") + number(1) + b"u"
    refused(whole(dictionary(text("a"), shared, text("b"), b"h\x00")), "appears in two places")


def test_a_dictionary_in_itself_is_refused() -> None:
    refused(whole(NEW + b"q\x00(" + text("a") + b"h\x00u"), "appears in two places")
    refused(whole(NEW + b"q\x00" + text("a") + b"h\x00s"), "appears in two places")


def test_numbers_and_marks_do_not_come_from_the_memo() -> None:
    refused(whole(NEW + b"(" + text("a") + number(1) + b"\x94" + text("b") + b"h\x00u"))
    refused(whole(NEW + b"(\x94" + text("a") + b"h\x00u"))
    refused(whole(NEW + b"(" + text("a") + b")\x94" + b"h\x00u"))
    for memoise in (b"\x94", b"q\x00", b"r\x00\x00\x00\x00"):  # a memo is refused as well, used or not
        refused(whole(NEW + b"(" + memoise + text("a") + number(1) + b"u"), "no object")


@pytest.mark.parametrize(
    "data",
    {
        "nothing": b"",
        "a stop": b".",
        "no stop": PROTO + dictionary(),
        "no root": PROTO + b".",
        "a number": PROTO + number(1) + b".",
        "a name": PROTO + text("a") + b".",
        "a mark": PROTO + b"(.",
        "a tuple": PROTO + b").",
        "a constructor": PROTO + ORDERED_DICT + b".",
        "two roots": PROTO + NEW + NEW + b".",
        "something under the root": PROTO + number(1) + dictionary() + b".",
        "the root in another": PROTO + NEW + NEW + b"(" + text("a") + b"u.",
        "a key without a value": PROTO + NEW + b"(" + text("a") + b"u.",
        "a number as a key": PROTO + dictionary(number(1), number(1)) + b".",
        "a folder as a key": PROTO + dictionary(dictionary(), number(1)) + b".",
        "a name as a value": PROTO + dictionary(text("a"), text("b")) + b".",
        "a constructor as a value": PROTO + dictionary(text("a"), ORDERED_DICT) + b".",
        "a tuple as a value": PROTO + dictionary(text("a"), b")") + b".",
        "items without a mark": PROTO + NEW + text("a") + number(1) + b"u.",
        "items without a folder": PROTO + b"(" + text("a") + number(1) + b"u.",
        "an item without a folder": PROTO + text("a") + number(1) + b"s.",
        "an item of a number": PROTO + number(1) + text("a") + number(1) + b"s.",
        "a mark as a value": PROTO + NEW + text("a") + b"(s.",
        "reduce of nothing": PROTO + b"R.",
        "reduce without a constructor": PROTO + b")R.",
        "reduce without arguments": PROTO + ORDERED_DICT + b"R.",
        "reduce of a dictionary": PROTO + NEW + b")R.",
        "stack global of numbers": PROTO + number(1) + number(2) + b"\x93.",
        "an unknown protocol": b"\x80\x06" + dictionary() + b".",
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_no_tree_is_refused(data: tuple[str, bytes]) -> None:
    refused(data[1])


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_cut_at_any_byte_is_refused(protocol: int) -> None:
    data = pickle.dumps(OrderedDict(a=1, b=OrderedDict(c=300, d=70000), e=OrderedDict()), protocol)
    decode(data, 100_000)
    for size in range(len(data)):
        refused(data[:size], "it ends too early|global other")


@pytest.mark.parametrize("key", [number(1), dictionary(), b")", ORDERED_DICT], ids=repr)
def test_a_name_is_a_str(key: bytes) -> None:
    refused(whole(dictionary(key, number(1))), "a name is not a str")


def frame(data: bytes, length: int | None = None) -> bytes:
    return b"\x95" + struct.pack("<Q", len(data) if length is None else length) + data


def test_frames_are_read_as_streams_read_them() -> None:
    tree = dictionary(text("a"), number(1))
    assert decode(PROTO + frame(tree + STOP)) == {b"a": 1}
    assert decode(PROTO + frame(tree) + STOP) == {b"a": 1}
    assert decode(PROTO + frame(NEW + b"(") + frame(text("a")) + number(1) + frame(b"") + b"u.") == {b"a": 1}
    refused(PROTO + frame(tree, len(tree) - 2) + STOP, "frames overlap")  # it ends inside a number
    refused(PROTO + frame(frame(tree)) + STOP, "frames overlap")
    refused(PROTO + frame(b"", 9 + len(tree)) + frame(tree) + STOP, "frames overlap")
    refused(PROTO + frame(tree + STOP, len(tree) + 2), "ends too early")


# ---------------------------------------------------------------- bombs


@pytest.mark.parametrize(
    "data",
    {
        "LONG_BINPUT of a huge index": NEW + b"r\xff\xff\xff\x7f",
        "BINPUT out of order": NEW + b"q\x05",
        "BINPUT of an index twice": NEW + b"q\x00q\x00",
        "BINPUT of nothing": b"q\x00" + NEW,
        "MEMOIZE of nothing": b"\x94" + NEW,
        "BINGET of what was never put": NEW + b"h\x00",
        "LONG_BINGET of what was never put": NEW + b"j\xff\xff\xff\xff",
        "BINUNICODE longer than the file": NEW + b"X\xff\xff\xff\xff",
        "BINUNICODE8 longer than the file": NEW + b"\x8d" + b"\xff" * 8,
        "BINUNICODE8 of half of all memory": NEW + b"\x8d" + struct.pack("<Q", 2**63),
        "FRAME longer than the file": b"\x95" + b"\xff" * 8 + NEW,
        "LONG1 of 255 bytes": dictionary(text("a"), b"\x8a\xff" + b"\x7f" * 255),
        "LONG1 of nine bytes": dictionary(text("a"), b"\x8a\x09" + bytes(9)),
    }.items(),
    ids=lambda item: item[0],
)
def test_claims_of_memory_are_refused(data: tuple[str, bytes]) -> None:
    refused(whole(data[1]), "memo|ends too early|too large")


def test_long_names_from_the_memo_are_refused_when_they_are_out_of_proportion() -> None:
    long = [f"{i:0255}" for i in range(200)]
    memo = b"".join(text(name) + b"\x94" for name in long)
    again = b"".join(b"h" + bytes([i]) + number(1) for i in range(200))
    root = NEW + b"(" + b"".join(text(name) + b"\x94" + number(1) for name in long)
    assert len(memo) < len(root)
    folders = b"".join(text(f"folder {i}") + dictionary(again) for i in range(2000))
    data = whole(root + folders + b"u")
    assert 20 * len(data) < 2000 * 200 * 255
    refused(data, "names are out of proportion")


def test_names_from_the_memo_are_accepted_in_proportion() -> None:
    root = NEW + b"(" + text("image.jpg") + b"\x94" + number(1) + text("label.txt") + b"\x94" + number(2)
    folders = b"".join(text(f"{i}") + dictionary(b"h\x00" + number(1) + b"h\x01" + number(2)) for i in range(100_000))
    assert len(decode(whole(root + folders + b"u"))) == 300_002


# ---------------------------------------------------------------- names and numbers


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty"),
        (".", "'.' or '..'"),
        ("..", "'.' or '..'"),
        ("a/b", "contains '/'"),
        ("/", "contains '/'"),
        ("../x", "contains '/'"),
        ("a\0b", "NUL"),
        ("\0", "NUL"),
        ("x" * 256, "longer than 255"),
        ("é" * 128, "longer than 255"),
        ("x" * 100_000, "longer than 255"),
        ("\udc80" * 256, "longer than 255"),
        ("\ud800", "surrogate"),
        ("\udc7f", "surrogate"),
        ("\udd00", "surrogate"),
        ("\udfff", "surrogate"),
        ("a\udbffb", "surrogate"),
        (b"\xed\xa0\xbd\xed\xb8\x80", "surrogate"),
        (b"\xff", "not UTF-8"),
        (b"\x80", "not UTF-8"),
        (b"a\xc3", "not UTF-8"),
        (b"\xe2\x82", "not UTF-8"),
        (b"\xc0\xaf", "not UTF-8"),
        (b"\xc1\xbf", "not UTF-8"),
        (b"\xe0\x80\xaf", "not UTF-8"),
        (b"\xf0\x80\x80\xaf", "not UTF-8"),
        (b"\xf4\x90\x80\x80", "not UTF-8"),
        (b"\xf8\x88\x80\x80\x80", "not UTF-8"),
        (b"\xc3\x28", "not UTF-8"),
    ],
    ids=ascii,
)
def test_what_is_no_name_is_refused(name: str | bytes, reason: str) -> None:
    refused(whole(dictionary(text(name), number(1))), f"is invalid: .*{reason}")
    refused(whole(dictionary(text(name), dictionary())), f"is invalid: .*{reason}")


@pytest.mark.parametrize(
    ("name", "stored"),
    [
        ("\udc80", b"\x80"),
        ("\udcff" * 255, b"\xff" * 255),
        ("é" * 127 + "x", "é".encode() * 127 + b"x"),
        ("😀", "😀".encode()),
        ("\uffff", b"\xef\xbf\xbf"),
        ("...", b"..."),
        (". ", b". "),
        ("\udcae", b"\xae"),
    ],
    ids=ascii,
)
def test_names_at_the_edge_are_accepted(name: str, stored: bytes) -> None:
    assert decode(whole(dictionary(text(name), number(1)))) == {stored: 1}


def test_a_name_twice_in_a_folder_is_refused() -> None:
    refused(whole(dictionary(text("a"), number(1), text("a"), number(2))), "duplicated")
    refused(whole(dictionary(text("a"), number(1), text("a"), dictionary())), "duplicated")
    refused(whole(NEW + (text("a") + number(1) + b"s") * 2), "duplicated")


def test_two_texts_of_one_name_are_refused() -> None:
    refused(whole(dictionary(text("é"), number(1), text("\udcc3\udca9"), number(2))), "duplicated")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"J\xff\xff\xff\xff", "neither a record number"),
        (b"J\x00\x00\x00\x80", "neither a record number"),
        (b"\x8a\x01\xff", "neither a record number"),
        (b"\x8a\x08" + b"\xff" * 8, "neither a record number"),
        (number(3), "refers to record 3 of 3"),
        (number(4), "refers to record 4 of 3"),
        (b"J\xff\xff\xff\x7f", "refers to record 2147483647 of 3"),
        (b"\x8a\x05\x00\x00\x00\x00\x01", "refers to record 4294967296 of 3"),
        (b"\x8a\x08" + b"\xff" * 7 + b"\x7f", "refers to record 9223372036854775807 of 3"),
    ],
    ids=repr,
)
def test_records_that_are_not_there_are_refused(tmp_path: Path, value: bytes, reason: str) -> None:
    """The last of four records has the tree, so files must not refer to it either."""
    pack = Pack([b"0", b"1", b"2"], whole(dictionary(text("a"), number(2), text("b"), value)))
    (tmp_path / "pack.ffr").write_bytes(pack.build())
    with pytest.raises(MetadataError, match=reason):
        fffs.PackedFolder(tmp_path / "pack.ffr")


# ---------------------------------------------------------------- random pickles


def check_against_pickle(data: bytes, records: int) -> bool:
    """Return whether fffs accepts the pickle; if so, Python's unpickler must give the same tree."""
    try:
        accepted = decode(data, records)
    except MetadataError:
        return False
    assert accepted == expected(unpickle(data))
    assert all(value is None or 0 <= value < records for value in accepted.values())
    return True


@pytest.mark.parametrize("protocol", [2, 4])
def test_every_changed_byte_is_refused_or_means_the_same_to_python(protocol: int) -> None:
    tree = OrderedDict(ab=1, c=OrderedDict(d=2))
    data = pickle.dumps(tree, protocol)
    accepted = 0
    for position in range(len(data)):
        for value in set(range(256)) - {data[position]}:
            changed = bytearray(data)
            changed[position] = value
            accepted += check_against_pickle(bytes(changed), 300)
    assert accepted > 100, "other names and numbers are good trees"


PARTS = st.one_of(
    st.sampled_from([ORDERED_DICT, NEW, b"(", b")", b"R", b"s", b"u", b"\x94", b"q\x00", b"q\x01", b"h\x00", b"h\x01"]),
    st.sampled_from(
        [dictionary(), text("a"), text("b"), short("c"), text("collections"), text("OrderedDict"), b"\x93"]
    ),
    st.sampled_from(
        [b"j\x00\x00\x00\x00", b"r\x00\x00\x00\x00", PROTO, b"\x95" + bytes(8), b"K\x01", b"M\x01\x00", b"."]
    ),
    st.builds(text, NAMES),
    st.builds(number, st.integers(0, 2**31 - 1)),
)


@given(parts=st.lists(PARTS, max_size=20))
@example(parts=[dictionary(text("a"), number(1))])
@settings(max_examples=500)
def test_any_program_of_good_opcodes_is_refused_or_means_the_same_to_python(parts: list[bytes]) -> None:
    check_against_pickle(whole(b"".join(parts)), RECORDS)


@given(
    tree=TREES,
    cuts=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6)), max_size=3),
)
@settings(max_examples=200)
def test_pieces_of_pickles_put_elsewhere_are_refused_or_mean_the_same(
    tree: OrderedDict[str, Any], cuts: list[tuple[int, int, int]]
) -> None:
    data = pickle.dumps(tree, 4)
    for begin, length, to in cuts:
        begin %= len(data)
        piece = data[begin : begin + length % 20]
        data = data[: to % len(data)] + piece + data[to % len(data) :]
    check_against_pickle(data, RECORDS)


@pytest.mark.parametrize("name", GOLDEN.of_kind("packed"))
def test_golden_pickles_mean_the_same_to_python(name: str) -> None:
    data = GOLDEN.raw(name).records[-1]
    assert check_against_pickle(data[len(MAGIC) :], GOLDEN.raw(name).n - 1)
