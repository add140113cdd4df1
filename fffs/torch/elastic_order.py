"""ElasticOrder: the order of a loader with an ElasticBatchSampler, whose states any number of ranks can resume."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fffs.errors import UsageError
from fffs.torch.elastic import ElasticBatchSampler
from fffs.torch.epoch import Epoch
from fffs.torch.files import are_files, why_others
from fffs.torch.order import Order
from fffs.torch.state import HINT, VERSION

FILES: Final = 8  # of a data set that are described in a state, which is to be small


class ElasticOrder(Order):
    """As ``Order``, but a state says only how many samples all ranks together have taken."""

    sampler: ElasticBatchSampler

    def __init__(self, sampler: Any, *others: Any) -> None:
        super().__init__(sampler, *others)
        self._seed = zlib.crc32(str(sampler.seed).encode())  # the same on all ranks, and after a resume

    def __len__(self) -> int:
        # Not of what is left of a resumed epoch: trainers ask once, and keep the number for all epochs.
        return max(self.batches - self.step, 0)

    def begin(self) -> tuple[Epoch, Iterator[Any]]:
        """As in ``Order``. The number of the epoch is the sampler's, also after a resume or ``set_epoch``."""
        with self.sampler.beginning():
            epoch, rest = super().begin()
        epoch.number = self.sampler.epoch + 1
        return epoch, rest

    @property
    def batches(self) -> int:
        """The number of batches of a whole epoch."""
        return self.sampler.batches

    @property
    def _first(self) -> int:
        """As in ``Order``. The batches of a resumed epoch are those that are left, of which none is skipped."""
        return 0 if self.sampler.next_start.taken else self.step

    def seed(self, epoch: Epoch, position: int, batch: Any) -> int:
        """As in ``Order``, but the position is left out, which begins anew after a resume. No batch comes twice."""
        return super().seed(epoch, min(position, 0), batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader: numbers, and the checksums of the first files."""
        if self.latest is not None:
            self.latest.draw()
        inside = self.epoch.begun and not self.epoch.done
        fits = self._fits()
        return {
            "version": VERSION,
            "elastic": self.sampler.state_after(self.epoch.position if inside else None),
            "files": fits["files"] and fits["files"][:FILES],
            "indices": fits["indices"],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, with the next iterator, where the state was saved. Raises UsageError if it does not fit."""
        if not isinstance(state, Mapping) or not isinstance(state.get("elastic"), Mapping):
            raise UsageError("this is not the state of a DataLoader with an ElasticBatchSampler")
        if state.get("version") != VERSION:
            raise UsageError(f"the state has version {state.get('version')}, but this release needs {VERSION}")
        self._refuse_other_data(state)
        self.sampler.resume(state["elastic"])
        self._latest = None
        self.epoch = Epoch(state["elastic"]["epoch"], done=True)

    def _refuse_other_data(self, state: Mapping[str, Any]) -> None:
        then, now = state.get("files"), self._fits()
        if not are_files(then):
            raise UsageError(f"this is not the state of a DataLoader: its 'files' is {repr(then)[:60]}")
        if then is not None and now["files"] is not None and (why := why_others(then, now["files"])):
            raise UsageError(why)
        if state.get("indices") is not None and now["indices"] not in (None, state["indices"]):
            raise UsageError(f"the state is of a loader with indices that differ from those of this one; {HINT}")
