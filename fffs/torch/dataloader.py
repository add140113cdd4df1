"""DataLoader: torch's, with batches in reused shared memory, ``set_step``, and exact resumption."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import default_convert

from fffs.errors import UsageError
from fffs.torch.ahead import Announced, has_fixed_order
from fffs.torch.arena import Arena, settle
from fffs.torch.batch import Batch, Collate
from fffs.torch.dataset import Dataset
from fffs.torch.epoch import Epoch
from fffs.torch.fingerprint import fingerprint
from fffs.torch.order import Kind, Order
from fffs.torch.samplers import length

SPARE = 6  # batches of a worker that the training loop may hold at once, beyond those that wait for it


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads batches as ``torch.utils.data.DataLoader``: same arguments, same order for the same seed.

    What it adds:

    - Batches come from workers through shared memory that is used again, not through ``/dev/shm``. They are ordinary
      tensors, and the caller's for as long as he likes. While many are kept, others come in torch's way.
    - Raw records of different lengths are collated into a ``RecordBatch``.
    - Without workers, the next batch is announced to the disk before one is read, where batches come from disks and the
      sampler is one of torch's own: it comes while the program computes. See ``Dataset.announce``.
    - ``set_step(k)``: epochs that begin at batch k.
    - ``state_dict()`` and ``load_state_dict()``, at any time between two batches: the resumed run gets the batches that
      the other would have got next, in this epoch and the following ones, with any number of workers, persistent or
      not. So that this holds for random augmentations, too, the
      global generators of torch, numpy and Python are seeded for each batch, from the order's generator and the
      batch's position; after a batch that is loaded in this process they are put back. (For other data sets than
      ``fffs.torch.Dataset``, the order alone is resumed.) What would not be the same is refused: see
      ``load_state_dict``. ``set_step`` is no part of the state.

    With ``batch_size=None`` a data set gives one sample for each index of the sampler, or a list of samples for a list.
    Not thread-safe. A child of fork must not go on with its parent's iterator.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = 2,
        persistent_workers: bool = False,
        skippable: bool = True,
        **others: Any,
    ) -> None:
        """Arguments are torch's, ``others`` those of newer releases. skippable=False: no ``set_step``."""
        self._order: Order | None = None
        self.skippable = skippable
        ours = isinstance(dataset, Dataset)
        users_dataset = dataset
        if batch_size is None and batch_sampler is None:
            dataset, collate_fn = _OneByOne(dataset) if ours else dataset, collate_fn or default_convert
        if not isinstance(collate_fn, Collate):
            collate_fn = Collate(collate_fn)
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=collate_fn,
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=timeout,
            worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context,
            generator=generator,
            prefetch_factor=prefetch_factor if num_workers > 0 else None,
            persistent_workers=persistent_workers,
            **others,
        )
        if not isinstance(dataset, torch.utils.data.IterableDataset):
            kind = Kind.PLAIN if not ours else Kind.SEEDED if collate_fn.users else Kind.JOINED
            order = super()._index_sampler
            announces = ours and num_workers == 0 and has_fixed_order(order)
            look_ahead = partial(Announced, dataset=users_dataset) if announces else None
            fits = _Fits(users_dataset, batch_size, drop_last)
            self._order = Order(order, self.generator, kind, fits, look_ahead, persistent_workers)

    @property
    def _index_sampler(self) -> Any:
        # What torch's iterators take indices from.
        return super()._index_sampler if self._order is None else self._order

    def __iter__(self) -> Any:
        order = self._order
        if order is None:
            return self._start()
        order.replay()
        return _Batches(self._start(), order, self.num_workers)

    @property
    def _has_workers(self) -> bool:
        """Whether the next iterator is that of workers that are there already."""
        return self.persistent_workers and self._iterator is not None

    def _start(self) -> Any:
        """torch's iterator, which takes the seed of its workers from where the order says."""
        if self._order is None:
            return self._make_iterator()
        users = self.generator
        self.generator = self._order.seed_source(torch_draws=not self._has_workers)
        try:
            return self._make_iterator()
        finally:
            self.generator = users

    def _make_iterator(self) -> Any:
        """torch's iterator, with an arena for the workers that it starts."""
        if self.num_workers == 0 or self._has_workers:
            return super().__iter__()
        collate: Any = self.collate_fn
        with contextlib.suppress(OSError):  # a limit on the size of files: torch's way remains
            collate.arena = Arena(self.num_workers, (self.prefetch_factor or 2) + SPARE)
        try:
            iterator: Any = super().__iter__()
            iterator.arena = collate.arena  # lives as long as the workers
            return iterator
        finally:
            collate.arena = None

    # ------------------------------------------------------------ where to begin

    def _skippable(self) -> Order:
        if self._order is None:
            raise UsageError("an iterable data set has no order: batches of it cannot be passed over")
        if getattr(self, "in_order", True) is not True:
            raise UsageError("with in_order=False nobody knows which batches come next; leave it out")
        return self._order

    def set_step(self, step: int) -> None:
        """Begin the following epochs at batch ``step``, until this is called again; nothing before it is read.

        ``len()`` is that of the rest. Raises UsageError: there are fewer batches, or the loader is not skippable.
        """
        if not self.skippable:
            raise UsageError("this DataLoader was made with skippable=False")
        order, step = self._skippable(), operator.index(step)
        if step < 0 or (order.batches is not None and step > order.batches):
            raise UsageError(f"an epoch has {order.batches} batches: it cannot begin at batch {step}")
        order.step = step

    def state_dict(self) -> dict[str, Any]:
        """Where the loader is, for ``load_state_dict``, to be saved with the model. Each rank has its own.

        What is saved besides the position is the state of the generator that the order came from. Where that is torch's
        global one (``shuffle=True`` without ``generator``), loading puts it back to what it is now.
        """
        return self._skippable().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another loader, of the same data set and batch size, was: with the next iterator.

        A sampler of torch resumes, one that has ``state_dict`` and ``load_state_dict``, and one whose order comes from
        torch's global generator or from its attribute ``generator`` alone. Any other is known by its batches only: what
        it gave before the state was saved is compared with what it gives now, and that is an error where they differ.
        Between two epochs there is nothing to compare.

        Of a state that was saved after the last batch of an epoch, nothing is left: the next iterator is empty, unless
        the sampler is told another epoch (``set_epoch``) before: then that is the one that begins.

        Raises:
            UsageError: the state is none; or the data set, its files, batch_size, drop_last, the kind of the sampler or
            what that was made with are not those of the other loader. From the next iterator: the sampler gives another
            order than it gave then. Nothing has changed where this raises.

        Warns:
            UserWarning: between two epochs, the order of the next one may come from what the state does not have.

        """
        self._skippable().load_state_dict(state)


class _Fits:
    """What loaders have in common when one can take over from the other, as far as it is not their samplers'."""

    def __init__(self, dataset: Any, batch_size: int | None, drop_last: bool) -> None:
        self._dataset, self._settings = dataset, {"batch_size": batch_size, "drop_last": drop_last}

    def __call__(self) -> dict[str, Any]:
        samples = length(self._dataset)  # one of no length may have a sampler that knows it
        return {"samples": samples, **self._settings, **fingerprint(self._dataset)}


class _OneByOne(torch.utils.data.Dataset[Any]):
    """A data set that is asked without batches, as a loader with ``batch_size=None`` has it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, batch: Batch) -> Any:
        samples = self.dataset.__getitems__(batch)
        return samples[0] if batch.single else samples


class _Batches:
    """An epoch: torch's iterator, and a count of what it gave."""

    def __init__(self, iterator: Any, order: Order, workers: int) -> None:
        self._iterator, self._workers = iterator, workers
        self._draws: Any = order.latest  # what torch just made

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._iterator)

    def draw(self) -> Epoch:
        """Draw the order, unless that is done; torch would do it when the first batch is asked for."""
        epoch: Epoch = self._draws.draw()
        return epoch

    def __next__(self) -> Any:
        settle()
        epoch = self.draw()
        try:
            batch = next(self._iterator)
        except StopIteration:
            epoch.done = True
            raise
        except Exception as error:
            self._count(error)
            if not self._workers:
                raise
            # A worker's traceback is in the message. The one of here would keep torch's iterator alive with its
            # workers, in a cycle: collected late, it waits seconds for them; collected in a process forked meanwhile,
            # it complains.
            del self
            raise error.with_traceback(None)  # noqa: B904 - it is the same exception
        self._count()
        return batch

    def _count(self, error: Exception | None = None) -> None:
        """A batch was given, or failed: it is one of the order all the same, and the next is behind it."""
        epoch = self.draw()
        if not self._workers:
            # Also one that an interrupt took: torch's iterator does not give it again.
            epoch.position = self._draws.position
        elif not str(error or "").startswith(("DataLoader timed out", "DataLoader worker")):  # these are still to come
            epoch.position += 1
