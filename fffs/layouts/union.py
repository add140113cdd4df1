"""Several packed folders as one tree: folders are merged, and the first of several files with one path is shown."""

from __future__ import annotations

from itertools import accumulate

from fffs.tree.builder import TreeBuilder
from fffs.tree.tree import ROOT, Tree


def merge(trees: list[Tree], counts: list[int]) -> tuple[Tree, list[tuple[bytes, int]]]:
    """Merge trees; trees[k] is that of a file with counts[k] records.

    Returns:
        The union, whose record numbers count through all files, and (path, number of the tree) of every name that an
        earlier tree hides.

    """
    firsts = [0, *accumulate(counts)]
    builder = TreeBuilder(int(trees[0].mode[ROOT]), int(trees[0].mtime[ROOT]))
    hidden: list[tuple[bytes, int]] = []
    # The files and symbolic links added so far, for hard links: (tree, node) -> node of the builder.
    added: dict[tuple[int, int], int] = {}
    # Folders to fill: node in the builder, path, and the (tree, node) of each folder that is merged into it.
    todo = [(ROOT, b"", [(k, ROOT) for k in range(len(trees))])]
    while todo:
        parent, prefix, folders = todo.pop()
        merged: dict[bytes, list[tuple[int, int]]] = {}
        for k, folder in folders:
            for name, node in trees[k].entries(folder):
                merged.setdefault(name, []).append((k, node))
        for name, found in merged.items():
            k, node = found[0]
            path = prefix + name
            if trees[k].is_dir(node):
                same = [(j, other) for j, other in found if trees[j].is_dir(other)]
                mode, mtime = int(trees[k].mode[node]), int(trees[k].mtime[node])
                todo.append((builder.add_directory(parent, name, mode, mtime), path + b"/", same))
                hidden += [(path, j) for j, other in found if not trees[j].is_dir(other)]
                continue
            hidden += [(path, j) for j, _ in found[1:]]
            if (k, node) in added:
                builder.add_link(parent, name, added[k, node])
            else:
                added[k, node] = _add(builder, parent, name, trees[k], node, firsts[k])
    return builder.build(firsts[-1], "the union of the sources"), hidden


def _add(builder: TreeBuilder, parent: int, name: bytes, tree: Tree, node: int, first_record: int) -> int:
    mode, mtime = int(tree.mode[node]), int(tree.mtime[node])
    if tree.is_symlink(node):
        return builder.add_symlink(parent, name, tree.target(node), mode, mtime)
    return builder.add_file(parent, name, first_record + tree.record(node), mode, mtime)
