"""Generators of torch's, its global one among them."""

from __future__ import annotations

import torch

Source = torch.Generator | None
"""A generator; None is torch's global one."""


def get_state(generator: Source) -> torch.Tensor:
    """What ``set_state`` takes."""
    return torch.get_rng_state() if generator is None else generator.get_state()


def set_state(generator: Source, state: torch.Tensor) -> None:
    """Put a generator where it was."""
    if generator is None:
        torch.set_rng_state(state)
    else:
        generator.set_state(state)


def first_number(state: torch.Tensor) -> int:
    """The first number that a generator in this state would give."""
    generator = torch.Generator()
    generator.set_state(state)
    return draw_seed(generator)


def draw_seed(generator: Source) -> int:
    """A number, drawn as torch draws the seed of workers."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
