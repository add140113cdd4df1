"""The spec of a data set: its keys with their types, from spec.json or from the user. It is checked before use."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fffs.errors import MetadataError, SourceNotFoundError, UsageError
from fffs.formats.bag import SUFFIX
from fffs.objects.locations import is_folder, open_file

NAME = "spec.json"
REFS = "refs"
LARGEST = 1 << 20  # the most bytes of a spec.json
WRITTEN_TYPE = re.compile(r"[a-z0-9_-]+(?:\([^()]*\))?(?:\[\])?")
SPLIT_TYPE = re.compile(r"([^()\[\]]+)(?:\(([^()]*)\))?")


@dataclass(frozen=True)
class Type:
    """The type of a key. ``text`` is without the ``[]`` of a sequence; codecs are called with ``arguments``."""

    text: str
    name: str
    arguments: tuple[str, ...]
    sequence: bool

    @classmethod
    def parse(cls, text: str, sequences: bool = True) -> Type:
        """Parse a type. sequences: whether ``[]`` marks a sequence, as in v1 and v2."""
        sequence = sequences and text.endswith("[]")
        text = text[:-2] if sequence else text
        split = SPLIT_TYPE.fullmatch(text)
        if split is None:
            return cls(text, text, (), sequence)
        arguments = tuple(split[2].split(",")) if split[2] else ()
        return cls(text, split[1], arguments, sequence)


def check_key(key: str) -> str | None:
    """Return why a key cannot be the name of a file, or None."""
    try:
        name = f"{key}{SUFFIX}".encode()
    except UnicodeEncodeError:
        return "is not valid text"
    if not key or key in (".", "..") or "/" in key or "\0" in key:
        return "cannot be the name of a file"
    return "is too long for the name of a file" if len(name) > 255 else None


def check(spec: Any, path: str) -> dict[str, str]:
    """Check a spec and return it, sorted by its keys. path: its origin, for messages.

    Raises:
        MetadataError: the spec is invalid, or a key cannot be the name of a file.

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
    """Check the spec of a data set that is to be written. Raises UsageError if no version of granular could read it."""
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
            raise UsageError(f"{path}: {REFS!r} cannot be a key: {REFS}{SUFFIX} is another file of the data set")
        if layout == "v3" and kind.endswith("[]"):
            raise UsageError(f"{path}: {key!r} is a sequence, but layout v3 has none; use layout='v1' or one blob")
        if layout == "v3" and not all(re.match(r"[a-z_]", text) for text in (key, kind)):
            raise UsageError(f"{path}: in layout v3, keys and types must begin with a-z or _, not {key!r}: {kind!r}")
    return dict(spec)


def encode(spec: dict[str, str]) -> bytes:
    """Return the bytes of spec.json."""
    return json.dumps(spec, sort_keys=True).encode("ascii")


def load(folder: str) -> dict[str, str]:
    """Load the spec of a data set, sorted by its keys.

    Raises:
        SourceNotFoundError: spec.json does not exist.
        MetadataError: spec.json is not a valid spec.
        ReadError: spec.json cannot be read.

    """
    with open_file(os.path.join(folder, NAME)) as file:
        text = file.read_bytes(0, min(file.size, LARGEST + 1))
    if len(text) > LARGEST:
        raise MetadataError(f"{file.name}: not a spec: larger than {LARGEST} bytes")
    return parse(text, file.name)


def load_common(folders: Sequence[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Load the common spec of all folders of a data set. given: replaces a missing spec.json.

    Raises:
        UsageError: given differs from an existing spec.json.
        MetadataError: a folder has another spec than the first one. Also as ``load``.

    """
    spec = _load_or(given, folders[0])
    for folder in folders[1:]:
        if _load_or(given, folder) != spec:
            raise MetadataError(f"{os.path.join(folder, NAME)}: differs from the spec of {folders[0]}")
    return spec


def _load_or(given: Mapping[str, str] | None, folder: str) -> dict[str, str]:
    wanted = None if given is None else check(given, f"{folder}: the spec given")
    try:
        found = load(folder)
    except SourceNotFoundError:
        if wanted is None or not is_folder(folder):
            raise
        return wanted
    if wanted is not None and wanted != found:
        raise UsageError(f"{folder}: its {NAME} differs from the spec given")
    return found


def parse(text: bytes, path: str) -> dict[str, str]:
    """Parse a spec.json. Returns the spec, sorted by its keys. path: its origin, for messages. Raises MetadataError."""
    try:
        return check(json.loads(text, object_pairs_hook=lambda pairs: _unique(pairs, path)), path)
    except (ValueError, RecursionError) as error:
        if isinstance(error, MetadataError):
            raise
        raise MetadataError(f"{path}: not a spec in JSON: {str(error)[:200]}") from None


def _unique(pairs: list[tuple[str, Any]], path: str) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MetadataError(f"{path}: a key occurs twice")
    return found
