"""States of loaders: checks that a state is valid, and fits a loader, before it is used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fffs.errors import UsageError
from fffs.torch.files import are_files, why_others

VERSION = 5
CHANGED = "that changed in the epoch"  # replaces a value that changed, so that no loader has an equal one
CHECKSUMS = ("indices", "indices or weights")
HINT = "resume with the data and settings that the run began with"
HINTS = {  # for some values, another hint
    "rank": "each rank has a state of its own, unless its order comes from a DistributedSampler",
    "world size": "resume with as many ranks as the run began with",
}


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_seed(value: Any) -> bool:
    return _is_count(value) and value < 1 << 63


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_list(value: Any) -> bool:
    return type(value) is list


def _are_epochs(value: Any) -> bool:
    return type(value) is list and all(epoch is None or type(epoch) is int for epoch in value)


def _are_generators(value: Any) -> bool:
    return type(value) is list and all(map(_is_generator, value))


def _is_generator(value: Any) -> bool:
    try:
        torch.Generator().set_state(value)
    except (TypeError, RuntimeError):
        return False
    return True


# The check for each part, and the parts that may be None.
PARTS: dict[str, Callable[[Any], bool]] = {
    "fits": lambda value: isinstance(value, Mapping) and are_files(value.get("files")),
    "epoch": _is_count,
    "position": _is_count,
    "ahead": _is_list,
    "ended": _is_bool,
    "digest": _is_count,
    "seed": _is_seed,
    "seeds_each_epoch": _is_bool,
    "seeded": _is_bool,
    "samplers": _is_list,
    "sampler_epochs": _are_epochs,
    "drawn_from": _are_generators,
    "generators": _are_generators,
    "global": _is_generator,
}
OPTIONAL = ("position", "seed", "drawn_from", "global")  # the third: between epochs, until 0.1


def on_cpu(state: Any) -> Any:
    """Return the state with the states of generators on the CPU, where generators need them."""
    if not isinstance(state, Mapping):
        return state
    moved = {name: _moved(state[name]) for name in ("drawn_from", "generators", "global") if name in state}
    return {**state, **moved}


def _moved(value: Any) -> Any:
    if type(value) is list:
        return [_moved(item) for item in value]
    try:
        return value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else value
    except (RuntimeError, NotImplementedError):  # a tensor without data
        return None


def why_no_state(why: str) -> dict[str, Any]:
    """Return what a loader that cannot be resumed has for a state."""
    return {"version": VERSION, "why": why}


def begins_anew(state: Any) -> bool:
    """Return whether a state is of a loader that cannot be resumed, after a warning that says so."""
    if not isinstance(state, Mapping) or set(state) != {"version", "why"}:
        return False
    warnings.warn(f"the data begins anew, because the state says only: {state['why']}", stacklevel=3)
    return True


def refuse_what_is_no_state(state: Any) -> None:
    """Raise UsageError unless this is a state of the current version, and each part has a valid type."""
    foreign = "this is not what state_dict of an fffs.torch.DataLoader returns"
    if not isinstance(state, Mapping) or type(state.get("version")) is not int:
        raise UsageError(foreign)
    if "elastic" in state:
        raise UsageError("the state is of a loader with an ElasticBatchSampler, which this one does not have")
    if state["version"] != VERSION:
        raise UsageError(f"the state has version {state['version']}, but this release needs {VERSION}")
    for name, is_right in PARTS.items():
        if name not in state:
            raise UsageError(f"{foreign}: it has no {name!r}")
        if not (is_right(state[name]) or (state[name] is None and name in OPTIONAL)):
            raise UsageError(f"{foreign}: its {name!r} is {repr(state[name])[:60]}")
    inside = state["position"] is not None
    if inside and (state["seed"] is None or state["drawn_from"] is None or not state["seeded"]):
        raise UsageError(f"{foreign}: it is within an epoch, but has no order of it")


def refuse_what_does_not_fit(state: Mapping[str, Any], fits: Mapping[str, Any], lengths: Mapping[str, int]) -> None:
    """Raise UsageError unless a state is of a loader like this one.

    Args:
        state: a valid state.
        fits: the description of this loader. Values that are None here or in the state are not compared.
        lengths: the lengths that lists in the state must have.

    """
    then = state["fits"]
    for name in [*fits, *(name for name in then if name not in fits)]:
        before, now = then.get(name), fits.get(name)
        if before is not None and now is not None and (why := _why_not(name, before, now)):
            raise UsageError(why)
    if state["position"] is not None and fits["batches"] is not None and state["position"] > fits["batches"]:
        raise UsageError(f"the state is after batch {state['position']}, but an epoch has only {fits['batches']}")
    for name, length in lengths.items():
        if state[name] is not None and len(state[name]) != length:
            raise UsageError(f"{name!r} of the state has {len(state[name])} items, but this loader needs {length}")


def _why_not(name: str, before: Any, now: Any) -> str | None:
    """Return how a value of this loader differs from that in the state, in one line, or None if they are equal."""
    if name == "files":
        return why_others(before, now)
    if before == now:
        return None
    if before == CHANGED:
        what = f"{name} {CHANGED}, which cannot be resumed"
    elif name in CHECKSUMS:
        what = f"{name} that differ from those of this one"
    else:
        what = f"{name} {before}, but this one has {name} {now}"
    return f"the state is of a loader with {what}; {HINTS.get(name, HINT)}"
