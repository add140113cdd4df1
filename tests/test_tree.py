"""Tree: names in arrays, lookups, and links, which are followed within limits."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inside import COLUMNS, ROOT, Tree, TreeBuilder, TreeView, plain

from fffs.errors import EntryNotFoundError, MetadataError, UsageError

NAMES = st.binary(min_size=1, max_size=4).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
NESTED = st.recursive(st.integers(0, 99), lambda below: st.dictionaries(NAMES, below, max_size=5), max_leaves=20)
Nested = dict[bytes, Any]


def build(root: Nested, records: int = 100, *, backwards: bool = False) -> Tree:
    """Build the tree of nested dictionaries; files are record numbers, links are bytes."""
    builder = TreeBuilder()

    def add(parent: int, items: Nested) -> None:
        for name, value in reversed(items.items()) if backwards else items.items():
            if isinstance(value, dict):
                add(builder.add_directory(parent, name), value)
            elif isinstance(value, bytes):
                builder.add_symlink(parent, name, value)
            else:
                builder.add_file(parent, name, value)

    add(ROOT, root)
    return builder.build(records, "test")


def preorder(root: Nested, prefix: bytes = b"") -> Iterator[tuple[bytes, Any]]:
    for name in sorted(root):
        yield prefix + name, root[name]
        if isinstance(root[name], dict):
            yield from preorder(root[name], prefix + name + b"/")


# ---------------------------------------------------------------- building and looking up


@given(root=st.dictionaries(NAMES, NESTED, max_size=6), backwards=st.booleans())
@settings(max_examples=80)
def test_every_name_is_found_and_no_other(root: Nested, backwards: bool) -> None:
    tree = build(root, backwards=backwards)
    listed = list(preorder(root))
    assert [path for path, _ in tree.walk()] == [path for path, _ in listed]
    for path, value in [(b"", root), *listed]:
        node = tree.find(path)
        if not isinstance(value, dict):
            assert (tree.is_file(node), tree.record(node), tree.nlink[node]) == (True, value, 1)
            continue
        assert tree.is_dir(node)
        assert [name for name, _ in tree.entries(node)] == sorted(value)
        assert tree.nlink[node] == 2 + sum(isinstance(below, dict) for below in value.values())
        assert tree.parent[node] == tree.find(path.rpartition(b"/")[0])
        for name in value:
            for other in (name, name + b"x", name[:-1], name + b"\0", name[:-1] + bytes([name[-1] ^ 1])):
                assert (tree.lookup(node, other) is not None) == (other in value)


@given(NESTED.filter(lambda root: isinstance(root, dict)))
def test_every_inode_has_a_path_that_leads_to_it(root: Nested) -> None:
    tree = build(root)
    view = TreeView(tree, None)  # type: ignore[arg-type]
    inodes = list(range(1, view.inodes + 1))
    paths = view.paths([*inodes, *inodes])
    assert [tree.find(path) + 1 for path in paths] == [*inodes, *inodes]
    assert [view.path(inode) for inode in inodes] == paths[: len(inodes)]
    files = {tree.record(node) for _, node in tree.walk() if tree.is_file(node)}
    found = view.inodes_of(np.array(sorted(files), np.int64))
    assert [tree.record(inode - 1) for inode in found] == sorted(files)


def test_the_order_of_adding_does_not_matter() -> None:
    root: Nested = {b"b": 1, b"a": {b"z": 2, b"y": {}}, b"c": b"target", b"a-": 3}
    one, other = build(root), build(root, backwards=True)
    for name in COLUMNS:
        if name not in ("ref", "targets"):  # targets are in the order in which they were added
            assert getattr(one, name).tolist() == getattr(other, name).tolist()


def test_a_large_folder_is_listed_from_any_position() -> None:
    tree = build({b"%05d" % i: i for i in range(5000)}, 5000)
    assert [name for name, _ in tree.entries(ROOT)] == [b"%05d" % i for i in range(5000)]
    for start in (0, 1, 1023, 1024, 1025, 4999, 5000, 6000):
        assert [tree.record(node) for _, node in tree.entries(ROOT, start)] == list(range(start, 5000))


def test_what_is_no_folder_has_no_entries() -> None:
    tree = build({b"file": 0, b"link": b"file"})
    for node in (1, 2, 3, 2**32 - 1):
        assert tree.lookup(node, b"file") is None
    assert tree.lookup(ROOT, b"") is None


@pytest.mark.parametrize("path", [b"", b".", b"./", b"//".lstrip(b"/"), b"./."])
def test_the_root_has_these_names(path: bytes) -> None:
    assert build({b"a": 0}).find(path) == ROOT


@pytest.mark.parametrize("path", [b"a/b", b"a//b", b"./a/b", b"a/./b/", b"a/b/."])
def test_paths_are_normalised(path: bytes) -> None:
    tree = build({b"a": {b"b": 7}})
    assert tree.record(tree.find(path)) == 7
    node = tree.follow(path)
    assert node is not None
    assert tree.record(node) == 7


@pytest.mark.parametrize("path", [b"/", b"/a", b"..", b"a/..", b"a/../a", b"x", b"a/b/c", b"a\0"])
def test_these_paths_never_exist(path: bytes) -> None:
    tree = build({b"a": {b"b": 7}})
    with pytest.raises(EntryNotFoundError):
        tree.find(path)
    assert tree.follow(path) is None


def test_a_tree_can_be_pickled_and_copied() -> None:
    tree = build({b"a": {b"b": 7}, b"link": b"a"})
    for other in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree), copy.copy(tree)):
        assert list(other.walk()) == list(tree.walk())
        assert other.lookup(ROOT, b"a") == tree.lookup(ROOT, b"a")


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"/", b"a\0", b"x" * 256], ids=lambda name: repr(name[:4]))
def test_what_is_no_name_is_refused(name: bytes) -> None:
    with pytest.raises(MetadataError):
        build({name: 0})
    with pytest.raises(MetadataError):
        build({b"a": {name: {}}})


def test_a_name_twice_is_refused() -> None:
    for second in ("file", "folder", "link"):
        builder = TreeBuilder()
        builder.add_file(ROOT, b"a", 0)
        builder.add_file(ROOT, b"b", 0)
        if second == "file":
            builder.add_file(ROOT, b"a", 1)
        elif second == "folder":
            builder.add_directory(ROOT, b"a")
        else:
            builder.add_symlink(ROOT, b"a", b"b")
        with pytest.raises(MetadataError, match="duplicated"):
            builder.build(2, "test")


def test_a_folder_with_two_names_or_in_itself_is_refused() -> None:
    builder = TreeBuilder()
    folder = builder.add_directory(ROOT, b"a")
    builder.add_link(ROOT, b"b", folder)
    with pytest.raises(MetadataError):
        builder.build(0, "test")
    builder = TreeBuilder()
    folder = builder.add_directory(ROOT, b"a")
    builder.add_link(folder, b"again", folder)
    with pytest.raises(MetadataError):
        builder.build(0, "test")
    builder = TreeBuilder()
    builder.add_link(ROOT, b"root", ROOT)
    with pytest.raises(MetadataError):
        builder.build(0, "test")


def test_a_name_in_what_is_no_folder_is_refused() -> None:
    builder = TreeBuilder()
    file = builder.add_file(ROOT, b"a", 0)
    builder.add_file(file, b"b", 0)
    with pytest.raises(MetadataError):
        builder.build(1, "test")


@pytest.mark.parametrize("record", [5, 2**32, 2**62, -1])
def test_a_record_that_is_not_there_is_refused(record: int) -> None:
    with pytest.raises(MetadataError):
        build({b"a": record}, 5)


def chain(levels: int, name: bytes, file: bytes = b"") -> Tree:
    """Build nested folders with a file in the last."""
    builder = TreeBuilder()
    folder = ROOT
    for _ in range(levels):
        folder = builder.add_directory(folder, name)
    if file:
        builder.add_file(folder, file, 0)
    return builder.build(1, "test")


def test_paths_are_at_most_as_long_as_the_system_takes() -> None:
    # 15 folders with names of 255 bytes, and their '/', leave room for one more such name.
    assert max(len(path) for path, _ in chain(15, b"d" * 255, b"f" * 255).walk()) == 4095
    for levels, name, file in (
        (16, b"d" * 255, b"f"),
        (2048, b"d", b"f"),
        (2049, b"d", b""),
        (10_000, b"d", b""),
    ):
        with pytest.raises(MetadataError, match="longer than 4095"):
            chain(levels, name, file)
    assert len(list(chain(2047, b"d", b"f").walk())) == 2048


def test_a_wrong_type_of_array_is_no_tree() -> None:
    tree = build({b"a": 0})
    for name in COLUMNS:
        arrays = {column: getattr(tree, column) for column in COLUMNS}
        good = arrays[name]
        for wrong in (good.astype(np.float64), np.stack([good, good]), np.zeros(8, good.dtype)[::2]):
            with pytest.raises(TypeError, match=name):
                Tree(**(arrays | {name: wrong}))


# ---------------------------------------------------------------- links

LINKED: Nested = {
    b"file": 0,
    b"folder": {b"inner": 1, b"up": b"../file", b"self": b".", b"abs": b"/file"},
    b"to-file": b"file",
    b"to-link": b"to-file",
    b"to-folder": b"folder",
    b"through": b"to-folder/../folder/inner",
    b"slash": b"folder/",
    b"dot": b"./././file",
    b"root": b".",
    b"absolute": b"/file",
    b"dangling": b"nowhere",
    b"above": b"..",
    b"above-and-back": b"../file",
    b"file-as-folder": b"file/x",
    b"over-a-file": b"file/../file",
    b"loop": b"loop",
    b"ping": b"pong",
    b"pong": b"ping",
    b"round": b"folder/../round/inner",
}


@pytest.mark.parametrize(
    ("path", "leads_to"),
    {
        b"to-file": b"file",
        b"to-link": b"file",
        b"to-folder": b"folder",
        b"to-folder/inner": b"folder/inner",
        b"to-folder/up": b"file",
        b"folder/self/self/inner": b"folder/inner",
        b"through": b"folder/inner",
        b"slash": b"folder",
        b"slash/inner": b"folder/inner",
        b"dot": b"file",
        b"root": b"",
        b"root/root/file": b"file",
    }.items(),
)
def test_links_that_stay_inside_are_followed(path: bytes, leads_to: bytes) -> None:
    tree = build(LINKED)
    assert tree.follow(path) == tree.find(leads_to)


@pytest.mark.parametrize(
    "path",
    [
        *(b"absolute", b"dangling", b"above", b"above-and-back", b"file-as-folder", b"over-a-file", b"loop", b"ping"),
        *(b"round", b"folder/abs", b"to-folder/..", b"to-file/x", b"root/..", b"above/file", b"loop/x"),
    ],
)
def test_links_that_leave_or_go_in_circles_lead_nowhere(path: bytes) -> None:
    tree = build(LINKED)
    assert tree.follow(path) is None
    if b"/" not in path:
        assert tree.is_symlink(tree.find(path)), "but they are there"


def test_as_many_links_in_a_row_are_followed_as_linux_does() -> None:
    chain: Nested = {b"0": 5, **{b"%d" % i: b"%d" % (i - 1) for i in range(1, 60)}}
    tree = build(chain)
    assert tree.follow(b"40") == tree.find(b"0")
    assert tree.follow(b"41") is None


def test_a_path_with_its_links_has_so_many_parts_at_most() -> None:
    """Links may share one long target: without a limit each would cost forty times two thousand lookups."""
    tree = build(
        {
            b"file": 0,
            b"d": {},
            b"1": b"./" * 1000 + b"file",
            **{b"%d" % i: b"d/../" * 400 + b"%d" % (i - 1) for i in range(2, 9)},
        }
    )
    assert tree.follow(b"./" * 4094 + b"file") == tree.find(b"file")
    assert tree.follow(b"./" * 4095 + b"file") is None
    assert tree.follow(b"./" * 3093 + b"1") == tree.find(b"file")
    assert tree.follow(b"./" * 3094 + b"1") is None
    assert tree.follow(b"4") == tree.find(b"file")
    assert tree.follow(b"6") is None


def test_links_at_the_bottom_of_the_deepest_tree_are_followed() -> None:
    builder = TreeBuilder()
    folder = ROOT
    for _ in range(2047):
        folder = builder.add_directory(folder, b"d")
    builder.add_symlink(folder, b"l", b"../" * 1300 + b"d")
    tree = builder.build(0, "test")
    assert tree.follow(b"d/" * 2047 + b"l") == tree.find(b"d/" * 748)
    assert tree.follow(b"d/" * 2047) == tree.find(b"d/" * 2047)
    assert tree.follow(b"d/" * 2048) is None


# ---------------------------------------------------------------- layouts


def test_plain_records_have_names_of_one_width_in_their_order() -> None:
    for n, last in ((0, None), (1, b"000000"), (1_000_000, b"999999"), (1_000_001, b"1000000")):
        tree = plain.build(n, "", 5, "test")
        found = list(tree.entries(ROOT, max(n - 3, 0)))
        assert [tree.record(node) for _, node in found] == list(range(max(n - 3, 0), n))
        assert (found[-1][0] if found else None) == last
    assert {len(name) for name, _ in tree.entries(ROOT)} == {7}


def test_a_suffix_is_part_of_every_name() -> None:
    tree = plain.build(3, ".jpg", 0, "test")
    assert [name for name, _ in tree.entries(ROOT)] == [b"000000.jpg", b"000001.jpg", b"000002.jpg"]
    assert tree.lookup(ROOT, b"000001") is None


@pytest.mark.parametrize("suffix", ["/", "a/b", "\0", "x" * 250])
def test_what_cannot_end_a_name_is_no_suffix(suffix: str) -> None:
    with pytest.raises(UsageError, match="suffix"):
        plain.build(3, suffix, 0, "test")
