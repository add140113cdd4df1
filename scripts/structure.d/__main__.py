"""Counts properties of the structure of the code, and compares them with bounds.

Usage: scripts/structure [--where | --check]
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

LONGEST_MODULE: Final = 300  # lines
LONGEST_FUNCTION: Final = 30
TITLES: Final = frozenset({"FFRecord", "TFRecord", "OFRecord", "Bag", "ffrecord", "tfrecord", "ofrecord", "bag"})

BOUNDS: Final = {
    "circles of imports": 0,
    "files opened above files/ (fd with its path)": 0,
    "formats compared by name outside formats/": 0,
    "rooms and single modules": 32,
    "imports between them": 169,
    "imports in functions without `with importing`": 0,
    "names used twice": 0,
}
"""--check fails if a number is larger."""

SHARED_NAMES: Final = {
    "class PackedFolder": "the data set of fffs.torch has the name that users of ffrecord know",
    "module names": "native columns of the names in an archive, and the URLs of objects",
    "module ofrecord": "the public module of a format, and its row",
    "module tfrecord": "the public module of a format, and its row",
    "module plan": "a command, and how a conversion is decided",
    "module pack": "a command, and the module that it calls",
    "module unpack": "a command, and the module that it calls",
    "module verify": "a command, and the module that it calls",
}
"""Names that two modules or classes share intentionally, and why."""

Finding = tuple[str, list[str]]


class Module:
    """A module of the product. ``name`` is its full name for import."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.text = path.read_text()
        self.tree = ast.parse(self.text)
        parts = name.split(".")
        # A folder of fffs/, mount/, or a single module.
        self.room = parts[1] if len(parts) > 1 else parts[0]

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))

    def place(self, node: ast.stmt | ast.expr) -> str:
        return f"{self.path}:{node.lineno}"


def load_modules() -> dict[str, Module]:
    found = {}
    for folder, package in (("fffs", "fffs"), ("mount", "fffs.mount")):
        for path in sorted(Path(folder).rglob("*.py")):
            parts = [package, *path.relative_to(folder).with_suffix("").parts]
            name = ".".join(parts).removesuffix(".__init__")
            found[name] = Module(name, path)
    return found


def imports(module: Module, modules: dict[str, Module]) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the modules of the product that a module imports, also in functions, with the statements."""
    for node in ast.walk(module.tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in modules else node.module for name in names]
        for name in names:
            if name in modules and name != module.name:
                assert isinstance(node, ast.stmt)
                yield name, node


def circles(graph: dict[str, set[str]]) -> list[str]:
    """Return each group of nodes that can all be reached from each other."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                waiting += graph.get(node, ())
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in graph if a in reached[a]}
    return sorted(" ".join(sorted(group)) for group in groups)


def bare_descriptors(modules: Sequence[Module]) -> list[str]:
    """Return the functions with parameters for both a descriptor and its path."""
    found = []
    for module in modules:
        if module.room in ("files", "base", "native"):
            continue
        for function in module.functions():
            names = {argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)}
            if "fd" in names and names & {"path", "name"} and "dir_fd" not in ast.dump(function):
                found.append(f"{module.place(function)} {function.name}")
    return found


def compared_formats(modules: Sequence[Module]) -> list[str]:
    """Return the comparisons with the name or title of a format."""
    found = []
    for module in modules:
        if module.room in ("formats", "compat"):  # compat names the package that it replaces
            continue
        for node in ast.walk(module.tree):
            sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
            values = {leaf.value for side in sides for leaf in ast.walk(side) if isinstance(leaf, ast.Constant)}
            if values & TITLES:
                assert isinstance(node, ast.Compare)
                found.append(module.place(node))
    return found


def unguarded_imports(modules: Sequence[Module]) -> list[str]:
    """Return the imports in functions of the library that are not in a block of ``importing``, of any module.

    A child of fork waits for ever for a module that another thread of its parent was importing. Programs may do that:
    they do not fork while they import.
    """
    found = []
    for module in modules:
        if module.room == "cli" or module.path.stem in ("__main__", "glue"):
            continue
        for function in module.functions():
            guarded = {
                node
                for block in ast.walk(function)
                if isinstance(block, ast.With) and "importing" in ast.dump(block.items[0].context_expr)
                for node in ast.walk(block)
            }
            found += [
                module.place(node)
                for node in ast.walk(function)
                if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in guarded
            ]
    return sorted(set(found))


def names_used_twice(modules: Sequence[Module]) -> list[str]:
    """Return the names that several modules, or several public classes, share."""
    users: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        if not module.path.stem.startswith("__"):
            users[f"module {module.path.stem}"].append(str(module.path))
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                users[f"class {node.name}"].append(str(module.path))
    return sorted(
        f"{name}: {', '.join(paths)}" for name, paths in users.items() if len(paths) > 1 and name not in SHARED_NAMES
    )


def begin(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the first line of a function's body, after the docstring."""
    body = function.body[1:] if ast.get_docstring(function) and len(function.body) > 1 else function.body
    return body[0].lineno


def findings(modules: dict[str, Module]) -> dict[str, list[str]]:
    """Return the places of each property."""
    every = list(modules.values())
    graph = {module.name: {name for name, _ in imports(module, modules)} for module in every}
    rooms: defaultdict[str, set[str]] = defaultdict(set)
    for name, others in graph.items():
        rooms[modules[name].room] |= {modules[other].room for other in others}
    rooms = defaultdict(set, {room: others - {room} for room, others in rooms.items()})
    functions = [(module, function) for module in every for function in module.functions()]
    return {
        "rooms and single modules": sorted(rooms),
        "imports between them": sorted(f"{room} -> {other}" for room in rooms for other in rooms[room]),
        "circles of imports": circles(graph) + circles(dict(rooms)),
        "imports in functions": [
            f"{module.place(node)} {name}"
            for module in every
            for name, node in imports(module, modules)
            if node.col_offset
        ],
        "imports in functions without `with importing`": unguarded_imports(every),
        "files opened above files/ (fd with its path)": bare_descriptors(every),
        "formats compared by name outside formats/": compared_formats(every),
        "names used twice": names_used_twice(every),
        f"modules of more than {LONGEST_MODULE} lines": [
            f"{module.path}: {lines}" for module in every if (lines := module.text.count("\n")) > LONGEST_MODULE
        ],
        f"functions of more than {LONGEST_FUNCTION} lines": [
            f"{module.place(function)} {function.name}: {lines}"
            for module, function in functions
            if (lines := (function.end_lineno or 0) - begin(function) + 1) > LONGEST_FUNCTION
        ],
    }


def main(arguments: Sequence[str]) -> int:
    if not set(arguments) <= {"--where", "--check"}:
        print(__doc__, file=sys.stderr)
        return 2
    modules = load_modules()
    found = findings(modules)
    broken = [what for what, bound in BOUNDS.items() if len(found[what]) > bound]
    if "--check" in arguments:
        for what in broken:
            print(f"{what}: {len(found[what])}, more than the bound of {BOUNDS[what]}", *found[what], sep="\n  ")
        return 1 if broken else 0
    for what, places in found.items():
        print(f"{len(places):6}  {what}")
        if "--where" in arguments:
            print(*(f"            {place}" for place in places), sep="\n")
    native = [path for path in Path("fffs/native").glob("*.[ch]") if path.name != "_native.c"]
    lines = {"Python": sum(module.text.count("\n") for module in modules.values())}
    lines["C"] = sum(path.read_text().count("\n") for path in native)
    print(
        f"{sum(lines.values()):6}  lines ({', '.join(f'{count} of {language}' for language, count in lines.items())})"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
