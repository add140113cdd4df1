"""Names of data sets, which every process can import: ``package.module:name``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from fffs.errors import UsageError
from fffs.packing.dump import Items

EXAMPLE = 'name one as "package.module:name"'


def name_of(dataset: str | Callable[[], Items]) -> str:
    """Return the name of a data set, or of a function that returns one. Raises UsageError if it has none."""
    if isinstance(dataset, str):
        module, _, name = dataset.partition(":")
        if not module or not name:
            raise UsageError(f"{dataset!r}: not the name of a data set; {EXAMPLE}")
        return dataset
    module, name = (str(getattr(dataset, field, "") or "") for field in ("__module__", "__qualname__"))
    if not callable(dataset) or not module or not name:
        raise UsageError(f"{dataset!r:.80}: has no name that a task can import; {EXAMPLE}")
    if module == "__main__":
        raise UsageError(f"{name}: is in the main script, which a task cannot import; put it into a module of its own")
    found = f"{module}:{name}"
    if _find(found) is not dataset:
        raise UsageError(f"{found}: is not the function that was given; {EXAMPLE}")
    return found


def load_items(name: str) -> Items:
    """Import a data set, or a function and call it. Raises UsageError if there is none, and what the module raises."""
    found = _find(name)
    if not _is_items(found) and callable(found):
        found = found()
    if not _is_items(found):
        raise UsageError(f"{name}: is or returns a {type(found).__name__}, which has no len() or no [i]")
    items: Items = found
    return items


def _find(name: str) -> Any:
    module, _, path = name.partition(":")
    if not all(module.split(".")):  # a relative name is none for another process
        raise UsageError(f"{name!r}: {module!r} is not the full name of a module; {EXAMPLE}")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise UsageError(f"{name}: {error}; install it, or set PYTHONPATH, on each machine") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{name}: the module {module} has no {path}")
        found = getattr(found, part)
    return found


def _is_items(found: Any) -> bool:
    return not isinstance(found, type) and hasattr(found, "__len__") and hasattr(found, "__getitem__")
