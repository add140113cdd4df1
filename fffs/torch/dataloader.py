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
from fffs.torch.ahead import Announced, LookAhead, Told, has_fixed_order
from fffs.torch.arena import Arena, settle
from fffs.torch.batch import Collate, RestoredGenerators
from fffs.torch.dataset import Dataset
from fffs.torch.elastic import ElasticBatchSampler
from fffs.torch.elastic_order import ElasticOrder
from fffs.torch.epoch import Epoch
from fffs.torch.fingerprint import fingerprint
from fffs.torch.order import Kind, Order
from fffs.torch.samplers import length
from fffs.torch.state import begins_anew, why_no_state

SPARE = 6  # batches of a worker that the training loop may hold at once, in addition to prefetched ones


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Loads batches as ``torch.utils.data.DataLoader``: same arguments, same order for the same seed.

    Differences:

    - Batches come from workers through reused shared memory, not through ``/dev/shm``. They are ordinary tensors, and
      the caller may keep them. While many are kept, further ones come in torch's way.
    - Raw records of different lengths are collated into a ``RecordBatch``, if the data set is a ``Dataset`` or
      ``Subset`` of ``fffs.torch``. Those of a ``ConcatDataset``, or of torch's ``Subset``, need a ``collate_fn``.
    - The next batches are announced to the disk or the store before the current one is read, so that they are loaded
      while the program computes: those of objects in stores, and without workers those of files that come from disks.
      This needs a sampler of torch. See ``Dataset.announce``.
    - ``set_step(k)``: epochs begin at batch k.
    - With persistent workers, an iterator raises UsageError if another one began before its end: both use the same
      workers, and torch's loader gives the batches of the other one to both. (Not with an iterable data set.)
    - ``state_dict()`` and ``load_state_dict()``, at any time between two batches: the resumed run gets the batches that
      the saved run would have got next, in this epoch and the following ones, with any number of workers, persistent or
      not. To make random augmentations resumable, too, the global generators of torch, numpy and Python are seeded for
      each batch, its samples and ``collate_fn``, from the order's generator, the batch's position and its indices, so
      that what ``worker_init_fn`` seeds has no effect; after a batch is loaded in this process, they are restored. (For
      data sets other than ``fffs.torch.Dataset``, only the order is resumed.) A state that would give other batches is
      refused: see ``load_state_dict``. ``set_step`` is not part of the state. If the loop ends with the last batch
      without asking for another one, as Lightning's does, a ``generator`` that was given is left in another state
      without workers than with them, as by torch's loader; the following epochs differ then.

    With ``batch_size=None`` a data set gives one sample for each index of the sampler, or a list of samples for a list.
    If it, or a data set that it takes its samples from, has a ``__getitems__`` of its own, torch does not call that in
    this mode, and only the order is resumed.
    Not thread-safe. A child of fork must not continue its parent's iterator.

    Examples:
        >>> loader = fffs.torch.DataLoader(fffs.torch.Dataset("train.ffr"), batch_size=2)
        >>> [bytes(record.numpy()) for batch in loader for record in batch]
        [b'one', b'two', b'three']

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
        """Arguments are those of torch; ``others`` those of newer releases. skippable=False: forbid ``set_step``."""
        self._order: Order | None = None
        self.skippable = skippable
        self._ours = False
        one_by_one = batch_size is None and batch_sampler is None
        if one_by_one:
            collate_fn = collate_fn or default_convert
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
            # Without batches, torch does not call __getitems__, so that of a user need not accept a single sample.
            self._ours = isinstance(dataset, Dataset) and not (one_by_one and dataset.reaches_own_batches)
            order = self.sampler if self.batch_sampler is None else self.batch_sampler
            look_ahead: Callable[..., LookAhead] | None = None
            if self._ours and has_fixed_order(order):
                if num_workers == 0:
                    look_ahead = partial(Announced, dataset=dataset)
                elif dataset.is_remote:
                    look_ahead = partial(Told, workers=num_workers)
            fits = _Fits(dataset, batch_size, drop_last)
            kind = ElasticOrder if isinstance(order, ElasticBatchSampler) else Order
            self._order = kind(order, self.generator, fits, look_ahead, persistent_workers)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "collate_fn" and not isinstance(value, Collate):
            value = Collate(value)
        super().__setattr__(name, value)

    @property
    def _index_sampler(self) -> Any:
        # torch's iterators take indices from this.
        order = self._order
        if order is None:
            return super()._index_sampler
        if order.sampler is not (self.sampler if self.batch_sampler is None else self.batch_sampler):
            # torch refuses this, too, except from a subclass that goes around its __setattr__.
            raise UsageError("the sampler was replaced after this DataLoader was made; give it to DataLoader() instead")
        return order

    @property
    def _auto_collation(self) -> bool:
        # torch's iterators then call the data set's __getitems__, also for a single sample.
        return super()._auto_collation or self._ours

    @property
    def _kind(self) -> Kind:
        collate: Any = self.collate_fn
        dataset: Any = self.dataset
        if not self._ours:
            return Kind.PLAIN
        if dataset.has_own_batches:
            return Kind.OWN
        return Kind.JOINED if collate.users is None else Kind.SEEDED

    def __iter__(self) -> Any:
        self._end_killed_workers()
        order = self._order
        if order is None:
            return self._start()
        order.replay()
        return _Batches(self._start(), order, self.num_workers)

    def _end_killed_workers(self) -> None:
        """End the persistent workers if one of them was killed, so that new ones start: with those that are left, torch
        would raise the same error in every further epoch.
        """
        iterator: Any = self._iterator
        if iterator is not None and any(worker.exitcode is not None for worker in iterator._workers):
            self._end_workers()

    def _end_workers(self) -> None:
        """End the persistent workers, if there are any."""
        iterator: Any = self._iterator
        self._iterator = None
        if iterator is not None:
            iterator._shutdown_workers()

    @property
    def _has_workers(self) -> bool:
        """Whether the next iterator uses workers that already run."""
        return self.persistent_workers and self._iterator is not None

    def _start(self) -> Any:
        """Make torch's iterator, which draws the seed of its workers from the order's ``seed_source``."""
        users, order = self.generator, self._order
        try:
            if order is None:
                return self._make_iterator()
            with order.starting():
                self.generator = order.seed_source(torch_draws=not self._has_workers)
                return self._make_iterator()
        except BaseException:
            # An interrupt or a timeout while they begin an epoch: torch would take their answers to this attempt for
            # those to the next one, and then batches of this for batches of that.
            self._end_workers()
            raise
        finally:
            self.generator = users

    def _make_iterator(self) -> Any:
        """Make torch's iterator, with an arena if it starts workers."""
        if self._order is not None and not self._has_workers:
            self._order.kind, self._order.is_here = self._kind, self.num_workers == 0
        if self.num_workers == 0 or self._has_workers:
            return super().__iter__()
        if isinstance(self.dataset, Dataset):
            self.dataset.learn_lengths()
        collate: Any = self.collate_fn
        with contextlib.suppress(OSError):  # the size of files is limited: torch's own way is used
            collate.arena = Arena(self.num_workers, (self.prefetch_factor or 2) + SPARE)
        collate.sends = True  # in the copies of the workers that start now
        try:
            iterator: Any = super().__iter__()
            iterator.arena = collate.arena  # the arena exists as long as the workers
            return iterator
        finally:
            collate.arena, collate.sends = None, False

    # ------------------------------------------------------------ where to begin

    @property
    def _why_not_skippable(self) -> str | None:
        if self._order is None:
            return "an iterable data set has no order: its batches cannot be skipped or resumed"
        if getattr(self, "in_order", True) is not True:
            return "with in_order=False, the order of batches is not known; omit in_order"
        return None

    def _skippable(self) -> Order:
        if why := self._why_not_skippable:
            raise UsageError(why)
        assert self._order is not None
        return self._order

    def set_step(self, step: int) -> None:
        """Begin the following epochs at batch ``step``, until this is called again. Skipped batches are not read.

        ``len()`` is then the number of remaining batches. Raises UsageError: too few batches, or not skippable.
        """
        if not self.skippable:
            raise UsageError("this DataLoader was made with skippable=False")
        order, step = self._skippable(), operator.index(step)
        if step < 0 or (order.batches is not None and step > order.batches):
            raise UsageError(f"an epoch of {order.batches} batches cannot begin at batch {step}")
        order.step = step

    def state_dict(self) -> dict[str, Any]:
        """Return the state for ``load_state_dict``, to be saved with the model. Each rank has its own state; with
        torch's DistributedSampler, that of any rank serves all of them; with an ``ElasticBatchSampler``, that of rank 0
        serves any number of ranks.

        Besides the position, it has the state of the generator that the order came from. If this is torch's global
        generator (``shuffle=True`` without ``generator``), loading restores that generator to its current state.

        The state of an iterable data set, or with ``in_order=False``, says only why it cannot be resumed.
        """
        why = self._why_not_skippable
        return why_no_state(why) if why else self._skippable().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue, with the next iterator, where another loader of the same data set and batch size was.

        These samplers can be resumed: those of torch, those that have ``state_dict`` and ``load_state_dict``, and those
        whose order comes only from torch's global generator or from their attribute ``generator``. For any other, the
        batches that it gave before the state was saved are compared with those that it gives now, and a difference is
        an error. Between two epochs there is nothing to compare.

        If the state was saved after the last batch of an epoch, the next iterator is empty, unless the sampler is told
        another epoch (``set_epoch``) before; then that epoch begins.

        Raises:
            UsageError: the state is invalid; or the data set, its files, batch_size, drop_last, the type of the sampler
            or its arguments differ from those of the other loader. From the next iterator: the sampler gives another
            order than in the saved run. If this raises, nothing has changed.

        Warns:
            UserWarning: between two epochs, the order of the next one may depend on something that is not in the state;
            or the state says only why its loader cannot be resumed, and has no effect.

        """
        if not begins_anew(state):
            self._skippable().load_state_dict(state)


class _Fits:
    """Describes a loader, except its samplers. A loader can resume the state of another with the same description."""

    def __init__(self, dataset: Any, batch_size: int | None, drop_last: bool) -> None:
        self._dataset, self._settings = dataset, {"batch_size": batch_size, "drop_last": drop_last}

    def __call__(self) -> dict[str, Any]:
        samples = length(self._dataset)  # None for a data set without len(); its sampler may have one
        return {"samples": samples, **self._settings, **fingerprint(self._dataset)}


class _Batches:
    """The iterator of an epoch: torch's iterator, with a count of its batches."""

    def __init__(self, iterator: Any, order: Order, workers: int) -> None:
        self._iterator, self._workers = iterator, workers
        self._draws: Any = order.latest  # made by torch's iterator just now
        self._received = self._count_received()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._iterator)

    def draw(self) -> Epoch:
        """Draw the order, if that was not done yet. torch would draw it when the first batch is asked for."""
        epoch: Epoch = self._draws.draw()
        return epoch

    def __next__(self) -> Any:
        settle()
        self._refuse_former()
        epoch, begun = self.draw(), self._begun()
        failure: Exception
        try:
            with RestoredGenerators():
                batch = next(self._iterator)
        except StopIteration as error:
            if self._begun() == begun:  # it is torch's
                epoch.done = True
                raise
            # Raised by a data set or collate_fn, it would end the loop as if the epoch were over.
            failure = RuntimeError(f"StopIteration was raised while batch {epoch.position} was loaded")
            failure.__cause__ = error.with_traceback(None) if self._workers else error
        except Exception as error:
            failure = error
        else:
            self._count()
            return batch
        self._count()
        if self._workers:
            # A worker's traceback is in the message. The traceback of this process would keep torch's iterator and its
            # workers alive in a reference cycle. If the cycle is collected late, it waits seconds for the workers; if
            # it is collected in a process forked meanwhile, it prints an error.
            del self
            failure = failure.with_traceback(None)
        try:
            raise failure
        finally:
            del failure  # which has this frame in its traceback

    def _refuse_former(self) -> None:
        """Raise UsageError if persistent workers have gone on to another epoch before the end of this one: torch's
        iterator, which all epochs of such a loader share, would return the batches of the other one.
        """
        if self._iterator._sampler_iter is self._draws:
            return
        epoch = self.draw()
        if epoch.done or (epoch.ended and not epoch.ahead):
            raise StopIteration
        raise UsageError(
            "the loader began another epoch before the end of this one, and both need its persistent workers: use "
            "another loader, or persistent_workers=False"
        )

    def _begun(self) -> int:
        """Return how many batches torch's iterator has begun to load, or with workers, has taken from them."""
        if not self._workers:
            return int(self._draws.position)
        return int(self._iterator._send_idx) - len(self._iterator._task_info)  # also with in_order=False

    def _count(self) -> None:
        """Count a batch that was returned or failed. A failed batch counts, too: the next one follows it."""
        epoch = self.draw()
        if not self._workers:
            # This includes a batch that an interrupt lost: torch's iterator does not return it again.
            epoch.position = self._draws.position
            return
        # After the error of a worker that was killed, or a timeout, the batch may still come.
        received, self._received = self._received, self._count_received()
        epoch.position += self._received - received

    def _count_received(self) -> int:
        """Return how many batches torch's iterator has received from workers, failed ones included."""
        return self._iterator._rcvd_idx if self._workers else 0
