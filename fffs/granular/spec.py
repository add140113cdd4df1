"""The spec of a data set: its keys with their types, from spec.json or from the user, checked before either is used."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fffs.errors import MetadataError, SourceNotFoundError, UsageError
from fffs.files.local import LocalFile
from fffs.formats.bag import SUFFIX

NAME = "spec.json"
REFS = "refs"
LARGEST = 1 << 20  # bytes of a spec.json; more is a bomb
WRITTEN_TYPE = re.compile(r"[a-z0-9_-]+(?:\([^()]*\))?(?:\[\])?")
SPLIT_TYPE = re.compile(r"([^()\[\]]+)(?:\(([^()]*)\))?")


@dataclass(frozen=True)
class Type:
    """One key's type. ``text`` is without the ``[]`` of a sequence; codecs are called with ``arguments``."""

    text: str
    name: str
    arguments: tuple[str, ...]
    sequence: bool

    @classmethod
    def parse(cls, text: str, sequences: bool = True) -> Type:
        """sequences: whether ``[]`` means one, as in v1 and v2."""
        sequence = sequences and text.endswith("[]")
        text = text[:-2] if sequence else text
        split = SPLIT_TYPE.fullmatch(text)
        if split is None:
            return cls(text, text, (), sequence)
        arguments = tuple(split[2].split(",")) if split[2] else ()
        return cls(text, split[1], arguments, sequence)


def check_key(key: str) -> str | None:
    """What is wrong with a key as the name of a file, or None."""
    try:
        name = f"{key}{SUFFIX}".encode()
    except UnicodeEncodeError:
        return "is no text"
    if not key or key in (".", "..") or "/" in key or "\0" in key:
        return "cannot be the name of a file"
    return "is too long for the name of a file" if len(name) > 255 else None


def check(spec: Any, path: str) -> dict[str, str]:
    """The spec, sorted by its keys, when it is one. path: where it comes from, for the message.

    Raises:
        MetadataError: it is none, or a key would be no file in the data set's folder.

    """
    if not isinstance(spec, Mapping) or not spec:
        raise MetadataError(f"{path}: a spec must name at least one key and its type")
    for key, kind in spec.items():
        if not isinstance(key, str) or not isinstance(kind, str):
            raise MetadataError(f"{path}: the key {key!r:.60} has the type {kind!r:.60}: both must be text")
        if problem := check_key(key):
            raise MetadataError(f"{path}: the key {key!r:.60} {problem}")
        if not kind:
            raise MetadataError(f"{path}: the key {key!r:.60} has no type")
    return dict(sorted(spec.items()))


def check_written(spec: Any, path: str, layout: str) -> dict[str, str]:
    """The spec of a data set that is to be written; raises UsageError when no granular would read it."""
    try:
        spec = check(spec, f"{path}: the spec given")
    except MetadataError as error:
        raise UsageError(str(error)) from None
    for key, kind in spec.items():
        if not WRITTEN_TYPE.fullmatch(kind):
            raise UsageError(
                f"{path}: the type {kind!r} of {key!r} must be a name, name(arguments), or one of them and []"
            )
        if layout == "v1" and key == REFS:
            raise UsageError(f"{path}: no key can be called {REFS!r}: a file of the data set is")
        if layout == "v3" and kind.endswith("[]"):
            raise UsageError(f"{path}: {key!r} is a sequence, and layout v3 has none; use layout='v1' or one blob")
        if layout == "v3" and not all(re.match(r"[a-z_]", text) for text in (key, kind)):
            raise UsageError(f"{path}: in layout v3, keys and types begin with a to z or _, not {key!r}: {kind!r}")
    return dict(spec)


def encode(spec: dict[str, str]) -> bytes:
    """The bytes of spec.json."""
    return json.dumps(spec, sort_keys=True).encode("ascii")


def load(folder: str) -> dict[str, str]:
    """The spec of a data set, sorted by its keys.

    Raises:
        SourceNotFoundError: there is no spec.json.
        MetadataError: it is no spec.
        ReadError: it cannot be read.

    """
    with LocalFile.open(os.path.join(folder, NAME)) as file:
        text = file.read_bytes(0, min(file.size, LARGEST + 1))
    if len(text) > LARGEST:
        raise MetadataError(f"{file.name}: larger than {LARGEST} bytes, which is no spec")
    return parse(text, file.name)


def load_common(folders: Sequence[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """The spec that all folders of a data set have. given stands in for a spec.json that is missing.

    Raises:
        UsageError: given contradicts a spec.json that is there.
        MetadataError: one folder has another spec than the first. And what ``load`` raises.

    """
    spec = _load_or(given, folders[0])
    for folder in folders[1:]:
        if _load_or(given, folder) != spec:
            raise MetadataError(f"{os.path.join(folder, NAME)}: not the spec of {folders[0]}")
    return spec


def _load_or(given: Mapping[str, str] | None, folder: str) -> dict[str, str]:
    wanted = None if given is None else check(given, f"{folder}: the spec given")
    try:
        found = load(folder)
    except SourceNotFoundError:
        if wanted is None or not os.path.isdir(folder):
            raise
        return wanted
    if wanted is not None and wanted != found:
        raise UsageError(f"{folder}: its {NAME} is not the spec given")
    return found


def parse(text: bytes, path: str) -> dict[str, str]:
    """The spec that a spec.json holds, sorted by its keys. path: where it comes from. Raises MetadataError."""
    try:
        return check(json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path)), path)
    except (ValueError, RecursionError) as error:
        if isinstance(error, MetadataError):
            raise
        raise MetadataError(f"{path}: not the JSON of a spec: {str(error)[:200]}") from None


def _unique(pairs: list[tuple[str, Any]], path: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MetadataError(f"{path}: a key is there twice")
    return found
