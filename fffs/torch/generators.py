"""Generators of torch, including its global one."""

from __future__ import annotations

import torch

Source = torch.Generator | None
"""A generator; None is torch's global one."""


def get_state(generator: Source) -> torch.Tensor:
    """Return the state of a generator."""
    return torch.get_rng_state() if generator is None else generator.get_state()


def set_state(generator: Source, state: torch.Tensor) -> None:
    """Set the state of a generator."""
    if generator is None:
        torch.set_rng_state(state)
    else:
        generator.set_state(state)


def first_number(state: torch.Tensor) -> int:
    """Return the first number that a generator in this state would draw."""
    generator = torch.Generator()
    generator.set_state(state)
    return draw_seed(generator)


def draw_seed(generator: Source) -> int:
    """Draw a number in the way in which torch draws the seed of workers."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
