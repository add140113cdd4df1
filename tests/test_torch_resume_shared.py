"""Resuming where others draw from the loader's generator, or change what the order comes from, within an epoch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import RandomSampler
from torch_samples import WARNINGS, Tagged, plain, write

from fffs.errors import UsageError
from fffs.torch import DataLoader

pytestmark = [pytest.mark.filterwarnings(text) for text in WARNINGS]
N = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("records") / "a.ffr", N)


# ---------------------------------------------------------------- generators


def with_sampler(path: Path, **arguments: Any) -> DataLoader:
    generator = torch.Generator().manual_seed(7)
    return DataLoader(Tagged(path), 4, sampler=RandomSampler(range(N), generator=generator, **arguments))


LAZY: list[dict[str, Any]] = [{"replacement": True, "num_samples": 96}, {"num_samples": 3 * N}]


@pytest.mark.parametrize("arguments", LAZY)
def test_a_sampler_of_torch_that_draws_as_it_goes_is_refused_where_others_drew_between(
    path: Path, arguments: dict[str, Any]
) -> None:
    batches = iter(loader := with_sampler(path, **arguments))
    for _ in range(12):
        next(batches)
        torch.rand(1, generator=loader.sampler.generator)  # type: ignore[attr-defined]
    resumed = with_sampler(path, **arguments)
    resumed.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="^RandomSampler: the sampler gives another order") as caught:
        iter(resumed)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("arguments", LAZY)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_torch_that_draws_as_it_goes_resumes(path: Path, arguments: dict[str, Any], workers: int) -> None:
    def make() -> DataLoader:
        sampler = RandomSampler(range(N), generator=torch.Generator().manual_seed(7), **arguments)
        return DataLoader(Tagged(path), 4, sampler=sampler, num_workers=workers)

    batches = iter(loader := make())
    for _ in range(9):
        next(batches)
    state = loader.state_dict()
    after = [plain(batches), plain(loader)]
    resumed = make()
    resumed.load_state_dict(state)
    assert [plain(resumed), plain(resumed)] == after
