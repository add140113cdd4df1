"""Unions: the merge of many trees is what a simple one in Python makes of them, and costs little."""

from __future__ import annotations

import errno
import random
import stat
import tracemalloc

import numpy as np
import pytest
from engine_model import fault
from inside import COLUMNS, ROOT, Tree, TreeBuilder, build_tree, lib, union

from fffs.errors import UnsupportedError

MODES = (0o644, 0o600, 0o755, 0o4711)
Hidden = list[tuple[bytes, int]]


# ---------------------------------------------------------------- the model


class Model:
    """Merges trees with dictionaries."""

    def __init__(self, trees: list[Tree], counts: list[int]) -> None:
        self.trees, self.counts = trees, counts
        self.builder = TreeBuilder(int(trees[0].mode[ROOT]), int(trees[0].mtime[ROOT]))
        self.numbers: dict[tuple[int, int], int] = {}
        self.hidden: Hidden = []

    def merge(self) -> Tree:
        todo = [(b"", ROOT, [(k, ROOT) for k in range(len(self.trees))])]
        for prefix, into, folders in todo:
            found: dict[bytes, list[tuple[int, int]]] = {}
            for k, folder in folders:
                for name, node in self.trees[k].entries(folder):
                    found.setdefault(name, []).append((k, node))
            for name, (shown, *others) in sorted(found.items()):
                number = self.show(into, name, *shown)
                inner = [(k, node) for k, node in (shown, *others) if self.trees[k].is_dir(node)]
                if shown in inner:
                    todo.append((prefix + name + b"/", number, inner))
                self.hidden += [
                    (prefix + name, k) for k, node in others if shown not in inner or (k, node) not in inner
                ]
        return self.builder.build(sum(self.counts), "the model")

    def show(self, into: int, name: bytes, k: int, node: int) -> int:
        tree, key = self.trees[k], (k, node)
        mode, mtime = int(tree.mode[node]), int(tree.mtime[node])
        if key in self.numbers:
            self.builder.add_link(into, name, self.numbers[key])
        elif tree.is_dir(node):
            self.numbers[key] = self.builder.add_directory(into, name, mode, mtime)
        elif tree.is_file(node):
            record = sum(self.counts[:k]) + tree.record(node)
            self.numbers[key] = self.builder.add_file(into, name, record, mode, mtime)
        else:
            self.numbers[key] = self.builder.add_symlink(into, name, tree.target(node), mode, mtime)
        return self.numbers[key]


def assert_same(found: Tree, expected: Tree) -> None:
    links = np.flatnonzero(expected.kinds == stat.S_IFLNK)
    assert found.kinds.tolist() == expected.kinds.tolist()
    assert [found.target(node) for node in links] == [expected.target(node) for node in links]
    for name in COLUMNS:
        if name != "targets":  # those of all trees, also of hidden links
            values, others = (np.array(getattr(tree, name)) for tree in (found, expected))
            if name == "ref":
                values[links] = others[links] = 0
            assert values.tolist() == others.tolist(), name


def random_tree(rng: random.Random, size: int, names: list[bytes], depth: int) -> Tree:
    builder = TreeBuilder(stat.S_IFDIR | rng.choice(MODES), rng.randrange(10**18))
    folders, others, taken = [(ROOT, 0)], [0][:0], set()
    for k in range(size):
        (folder, level), name = rng.choice(folders[-8:]), rng.choice(names)
        mode, mtime, kind = rng.choice(MODES), rng.randrange(10**18), rng.random()
        if (folder, name) in taken:
            continue
        taken.add((folder, name))
        if kind < 0.4 and level < depth:
            node = builder.add_directory(folder, name, stat.S_IFDIR | mode, mtime)
            folders.append((node, level + 1))
        elif kind < 0.55 and others:
            builder.add_link(folder, name, rng.choice(others))
        elif kind < 0.7:
            others.append(builder.add_symlink(folder, name, b"to%d" % k, stat.S_IFLNK | 0o777, mtime))
        else:
            others.append(builder.add_file(folder, name, rng.randrange(99), stat.S_IFREG | mode, mtime))
    return builder.build(100, "random")


# ---------------------------------------------------------------- what is shown


@pytest.mark.parametrize("seed", range(300))
def test_a_union_is_what_a_simple_merge_makes(seed: int) -> None:
    rng = random.Random(seed)
    few = rng.randrange(1, 12)
    names = [bytes(rng.choice(b"\x01ab.\xff") for _ in range(rng.randrange(3, 12))) for _ in range(few)]
    names += [b"a", b"b", b"\xff"][:few]
    trees = [
        random_tree(rng, rng.choice((0, 1, 8, 40, 150)), names, rng.choice((1, 3, 60)))
        for _ in range(rng.randrange(1, 11))
    ]
    counts = [rng.randrange(100, 300) for _ in trees]
    model = Model(trees, counts)
    expected, limit = model.merge(), rng.choice((0, 3, 10_000))
    found = union.merge(trees, counts, limit)
    assert_same(found.tree, expected)
    assert (found.hidden, found.named) == (len(model.hidden), model.hidden[:limit])


def test_a_union_of_trees_as_deep_as_paths_allow() -> None:
    trees = []
    for name in (b"a", b"b"):
        builder, folder = TreeBuilder(), ROOT
        for _ in range(2046):
            folder = builder.add_directory(folder, b"d")
        builder.add_file(folder, name, 0)
        builder.add_file(folder, b"c", 0)
        trees.append(builder.build(1, "deep"))
    found = union.merge(trees, [1, 1], 9)
    assert [name for name, _ in found.tree.entries(2046)] == [b"a", b"b", b"c"]
    assert found.named == [(b"d/" * 2046 + b"c", 1)]


def test_a_hard_link_keeps_the_names_that_are_not_hidden() -> None:
    builder = TreeBuilder()
    node = builder.add_file(ROOT, b"one", 0)
    folder = builder.add_directory(ROOT, b"folder")
    builder.add_link(folder, b"two", node)
    builder.add_link(folder, b"three", node)
    linked = builder.build(1, "test")
    first = TreeBuilder()
    first.add_file(ROOT, b"one", 0)
    tree, named, hidden = union.merge([first.build(1, "test"), linked], [2, 2], 9)
    assert (named, hidden) == ([(b"one", 1)], 1)
    assert tree.find(b"folder/two") == tree.find(b"folder/three") != tree.find(b"one")
    assert (tree.nlink[tree.find(b"folder/two")], tree.record(tree.find(b"folder/two"))) == (2, 2)


# ---------------------------------------------------------------- limits and cost


def flat(names: list[bytes]) -> Tree:
    """Return a tree of a folder with files."""
    n = len(names)
    return build_tree(
        parents=np.array([0] + [1] * n),
        nodes=np.arange(1, n + 2),
        name_offsets=np.cumsum([0, 1, *map(len, names)]),
        names=np.frombuffer(b"d" + b"".join(names), np.uint8),
        mode=np.array([stat.S_IFDIR] * 2 + [stat.S_IFREG] * n, np.uint16),
        mtime=np.zeros(n + 2, np.int64),
        ref=np.concatenate([[0, 0], np.arange(n)]),
        count=np.zeros(n + 2, np.uint32),
        targets=np.empty(0, np.uint8),
        records=n,
        source="test",
    )


@pytest.mark.parametrize("overlap", [False, True], ids=["none hidden", "half hidden"])
def test_a_union_takes_little_memory_per_file(overlap: bool) -> None:
    trees = [flat([b"f%08d" % k for k in range(0 if overlap else first, 100_000, 2)]) for first in (0, 1)]
    tracemalloc.start()
    try:
        found = union.merge(trees, [50_000] * 2, 9)
        assert tracemalloc.get_traced_memory()[1] < 64 * 100_000
    finally:
        tracemalloc.stop()
    assert (found.hidden, len(found.named)) == ((50_000, 9) if overlap else (0, 0))


def test_a_union_that_needs_larger_numbers_is_refused() -> None:
    tree = flat([b"a", b"b"])
    assert union.merge([tree, flat([b"c"])], [2**32 - 1, 1], 0).tree.ref[-1] == 2**32 - 1
    with pytest.raises(UnsupportedError, match="open fewer"):
        union.merge([tree, flat([b"c"])], [2**32, 1], 0)
    arrays = {name: getattr(tree, name) for name in COLUMNS} | {"targets": np.zeros(2**31, np.uint8)}
    with pytest.raises(UnsupportedError, match="open fewer"):
        union.merge([Tree(**arrays), Tree(**arrays)], [2, 2], 0)


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_union_without_memory_says_so(nth: int) -> None:
    trees = [flat([b"a"]), flat([b"b"])]
    with fault(lib.FFFS_FAULT_MEMORY, nth, 1, -errno.ENOMEM), pytest.raises(MemoryError, match="merge"):
        union.merge(trees, [1, 1], 0)
