"""Masks: which keys of a row are read, and which part of a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fffs.errors import UsageError
from fffs.granular.codecs import Codec
from fffs.granular.spec import Type

Mask = Mapping[str, Any] | Sequence[str] | None
"""Selects keys of a row: {key: True | False | range | slice}, without absent keys; a list of keys; or None for all."""


@dataclass(frozen=True)
class Wanted:
    """A key that a mask selects. ``part``: the selected part of a sequence."""

    key: str
    position: int
    type: Type
    decode: Codec
    part: range | slice


def select(path: str, types: Mapping[str, Type], decoders: Mapping[str, Codec], mask: Mask) -> list[Wanted]:
    """Return the keys that a mask selects, in the order of ``types``.

    path: begins errors. Raises UsageError: there is no such key, no decoder for its type, or it is no sequence.
    """
    if mask is None:
        chosen: Mapping[str, Any] = dict.fromkeys(types, True)
    elif isinstance(mask, Mapping):
        chosen = mask
    elif isinstance(mask, (str, bytes)):
        raise UsageError(f"{path}: a mask is a dictionary or a list of keys, not {mask!r:.60}")
    else:
        chosen = dict.fromkeys(mask, True)
    for key in chosen:
        if key not in types:
            raise UsageError(f"{path}: there is no key {key!r:.60}; the keys are {', '.join(types)}")
    return [
        _want(path, key, position, types[key], decoders, chosen[key])
        for position, key in enumerate(types)
        if not (chosen.get(key) is None or chosen[key] is False)
    ]


def _want(path: str, key: str, position: int, kind: Type, decoders: Mapping[str, Codec], part: Any) -> Wanted:
    decode = decoders.get(kind.text) or decoders.get(kind.name)
    if decode is None:
        raise UsageError(
            f"{path}: there is no decoder for {kind.text!r:.60}, the type of {key!r}; pass one in decoders="
        )
    if kind.text in decoders and kind.arguments:
        kind = Type(kind.text, kind.text, (), kind.sequence)
    if part is True:
        return Wanted(key, position, kind, decode, slice(None))
    if not isinstance(part, (range, slice)):
        raise UsageError(f"{path}: the mask of {key!r} must be True, False, a range or a slice, not {part!r:.60}")
    if not kind.sequence:
        raise UsageError(f"{path}: {key!r} is not a sequence; its mask must be True or False")
    return Wanted(key, position, kind, decode, part)
