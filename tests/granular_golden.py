"""The golden files of granular and their manifest. This module does not use fffs."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
from golden_files import sha256

FOLDER = Path(__file__).parent / "golden" / "granular"
MANIFEST: dict[str, Any] = json.loads((FOLDER / "manifest.json").read_text())
FILES: dict[str, dict[str, Any]] = {entry["path"].rstrip("/"): entry for entry in MANIFEST["files"]}
BAGS = [path for path, entry in FILES.items() if entry["kind"] == "bag"]
DATASETS = [path for path, entry in FILES.items() if entry["kind"] != "bag"]
CORRUPTIONS: dict[str, dict[str, Any]] = {entry["id"]: entry for entry in MANIFEST["corruptions"]}


def content(name: str, index: int, length: int) -> bytes:
    """Return the content that ``made`` in the manifest defines for a record of bags/NAME."""
    parts = (
        hashlib.sha256(f"granular-golden-1/bag/{name}/{index}/{k}".encode()).digest() for k in range(length // 32 + 1)
    )
    return b"".join(parts)[:length]


def records(path: str) -> list[bytes]:
    """Return the records of a golden Bag, parsed without fffs."""
    data, layout = (FOLDER / path).read_bytes(), FILES[path]["layout"]
    table = data[FILES[path]["data_end"] :]
    if layout == "sidecar":
        table = (FOLDER / path).with_suffix(".idx").read_bytes()
    ends = list(struct.unpack(f"<{len(table) // 8}Q", table))
    bounds = ends if layout == "starts" else [0, *ends]
    return [data[a:b] for a, b in itertools.pairwise(bounds)]


def damaged(identity: str, folder: Path) -> Path:
    """Copy a Bag with one of the corruptions in the manifest, and compare it. Returns the path of the .bag."""
    corruption = CORRUPTIONS[identity]
    for suffix in (".bag", ".idx"):
        source = (FOLDER / corruption["base"]).with_suffix(suffix)
        if source.exists():
            shutil.copy(source, folder / source.name)
    victim = folder / Path(corruption["file"]).name
    data = bytearray(victim.read_bytes())
    for edit in corruption["edits"]:
        if edit["op"] == "delete":
            victim.unlink()
            return folder / Path(corruption["base"]).name
        if edit["op"] == "truncate":
            del data[edit["size"] :]
        elif edit["op"] == "append":
            data += bytes.fromhex(edit["hex"])
        elif edit["op"] == "xor":
            data[edit["offset"]] ^= edit["mask"]
        else:
            new = bytes.fromhex(edit["hex"])
            data[edit["offset"] : edit["offset"] + len(new)] = new
    assert sha256(data) == corruption["sha256"]
    victim.write_bytes(data)
    return folder / Path(corruption["base"]).name


def matches(value: Any, told: Any) -> bool:
    """Whether a decoded value is the one that the manifest describes."""
    if isinstance(told, list):
        return isinstance(value, list) and len(value) == len(told) and all(map(matches, value, told))
    if not isinstance(told, dict):
        return type(value) is type(told) and value == told
    if "map" in told:
        inner = told["map"]
        return (
            isinstance(value, dict) and value.keys() == inner.keys() and all(matches(value[k], inner[k]) for k in inner)
        )
    if "bytes" in told:
        return value == bytes.fromhex(told["bytes"])
    if "bytes_len" in told:
        return len(value) == told["bytes_len"] and sha256(value) == told["bytes_sha256"]
    if "float" in told:
        return isinstance(value, float) and value.hex() == told["float"]
    if "lossy" in told:
        return list(value.shape) == told["shape"] and value.dtype == np.uint8
    if (
        not isinstance(value, np.ndarray)
        or list(value.shape) != told["shape"]
        or value.dtype != np.dtype(told["dtype"])
    ):
        return False
    data = value.tobytes()
    return data.hex() == told["data"] if "data" in told else sha256(data) == told["data_sha256"]


def matches_row(row: dict[str, Any], told: dict[str, Any]) -> bool:
    """As ``matches``, for all values of a row."""
    return row.keys() == told.keys() and all(matches(row[key], told[key]) for key in told)


def value_of(told: Any) -> Any:
    """Return the value that the manifest describes, if it contains the value."""
    if isinstance(told, list):
        return [value_of(item) for item in told]
    if not isinstance(told, dict):
        return told
    if "map" in told:
        return {key: value_of(item) for key, item in told["map"].items()}
    if "bytes" in told:
        return bytes.fromhex(told["bytes"])
    if "float" in told:
        return float.fromhex(told["float"])
    return np.frombuffer(bytes.fromhex(told["data"]), told["dtype"]).reshape(told["shape"])
