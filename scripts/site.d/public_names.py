"""The public names of fffs: what each public module exports."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType

MODULES = (
    "fffs",
    "fffs.mount",
    "fffs.torch",
    "fffs.tfrecord",
    "fffs.ofrecord",
    "fffs.granular",
    "fffs.utils",
    "fffs.dask",
    "fffs.ray",
    "fffs.fsspec",
    "fffs.errors",
)


def exported(name: str) -> list[str]:
    """Return the names that a module exports: those of ``__all__``, or else all that it defines, without modules."""
    module = importlib.import_module(name)
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [key for key, value in vars(module).items() if getattr(value, "__module__", None) == name]
    public = (key for key in listed if not key.startswith("_"))
    return [key for key in public if not isinstance(getattr(module, key), ModuleType)]


def text_of(module: str, name: str) -> str:
    """Return the documentation of a name."""
    value = getattr(importlib.import_module(module), name)
    if callable(value):
        return inspect.getdoc(value) or ""
    return f"a {type(value).__name__}"  # described by the page of its module
