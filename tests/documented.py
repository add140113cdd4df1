"""The examples in the docstrings of public names: makes the files that they use, and runs them."""

from __future__ import annotations

import doctest
import os
import re
import runpy
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from examples import ROOT, run_session

import fffs

_site = runpy.run_path(str(ROOT / "scripts/site.d/public_names.py"))
MODULES: tuple[str, ...] = _site["MODULES"]
exported: Callable[[str], list[str]] = _site["exported"]
text_of: Callable[[str, str], str] = _site["text_of"]
RECORDS = (b"one", b"two", b"three")


def make_files(folder: Path) -> None:
    """Make the files that examples use, in an empty folder."""
    for name, content in (("cat/1.jpg", b"first cat"), ("cat/2.jpg", b"second cat"), ("dog/1.jpg", b"first dog")):
        (folder / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "photos" / name).write_bytes(content)
    fffs.pack_folder(folder / "photos", folder / "photos.ffr")
    (folder / "mydata.py").write_text('samples = [b"one", b"two"]\n')
    with fffs.FileWriter(folder / "train.ffr", n=3) as writer:
        for record in RECORDS:
            writer.write_one(record)
    with fffs.granular.BagWriter(folder / "train.bag") as bag:
        for record in RECORDS:
            bag.append(record)
    with fffs.tfrecord.TFRecordWriter(folder / "train.tfrecord") as frames:
        for k in range(3):
            frames.write_one(fffs.tfrecord.encode({"label": k}))
    spec = {"name": "utf8", "label": "int(8)"}
    with fffs.granular.DatasetWriter(folder / "rows", spec, fffs.granular.encoders) as rows:
        rows.append({"name": "a", "label": 5})
        rows.append({"name": "b", "label": 7})
    for name in ("ofrecord/part-0", "ofrecord/part-1", *(f"shards/test.tfrecord-{k:05d}-of-00002" for k in (0, 1))):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()


def names_without_example(modules: Iterable[str]) -> list[str]:
    """Return the public names whose docstring neither has an example that runs nor names one.

    An exception, and an object that is no class or function, may be in an example of its module instead.
    """
    found = {f"{module}.{name}": text_of(module, name) for module in modules for name in exported(module)}
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    return [name for name, text in found.items() if not _has_example(name, text, found, pages)]


def _has_example(name: str, text: str, found: dict[str, str], pages: set[str]) -> bool:
    module, _, attribute = name.rpartition(".")
    value = getattr(fffs if module == "fffs" else _module(module), attribute)
    link = re.search(r"Example: ``([\w./]+)``", text)
    if link:
        return link[1] in pages or ">>> " in found.get(link[1], "")
    shared = not callable(value) or (isinstance(value, type) and issubclass(value, BaseException))
    return ">>> " in text or (shared and bool(text) and ">>> " in (_module(module).__doc__ or ""))


def _module(name: str) -> Any:
    return __import__(name, fromlist=["_"])


def run_docstrings(module: str, folder: Path) -> int:
    """Run the examples of a module and of its public names, each in a folder of its own; return how many there are."""
    count = 0
    for name in ("", *exported(module)):
        text = text_of(module, name) if name else _module(module).__doc__ or ""
        if doctest.DocTestParser().get_examples(text):
            place = folder / f"{module}.{name}"
            place.mkdir()
            make_files(place)
            os.chdir(place)
            sys.path.insert(0, str(place))
            try:
                count += run_session(text, f"{module}.{name}", {"fffs": fffs, "os": os, "np": np})
            finally:
                sys.path.remove(str(place))
    return count
