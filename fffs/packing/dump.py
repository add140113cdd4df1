"""dump: writes the items of an indexable object as record files, in parallel processes; all files appear or none."""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import os
from collections.abc import Generator
from typing import Any, Protocol

from fffs.base.buffers import readable_bytes
from fffs.base.numbers import check_positive
from fffs.base.paths import PathLike, without_zero
from fffs.base.text import tell
from fffs.cluster.engines import executing
from fffs.cluster.executors import Call, ExecutorLike, run_calls
from fffs.cluster.processes import Processes
from fffs.errors import UsageError
from fffs.files.atomic_folder import make_folder, new_folder, refuse_content
from fffs.files.targets import refuse_folder
from fffs.formats.part_names import ffrecord_part
from fffs.objects.names import is_url
from fffs.writer import FileWriter

PART_BYTES = 256 << 20  # minimum size of a part that the format's authors recommend
PARTS_MAX = 200
PROCESSES_MAX = 16
SAMPLES = 32  # items read to estimate the total size


class Items(Protocol):
    """An object that can be dumped: it has ``len()``, and ``[i]`` returns the bytes of one record."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def plan_parts(total_bytes: int) -> int:
    """Return the recommended number of parts: at most 200, of at least 256 MiB each; 100 to 200 from 25 GiB on.

    Examples:
        >>> fffs.utils.plan_parts(10 << 30)
        40

    """
    return min(max(total_bytes // PART_BYTES, 1), PARTS_MAX)


def dump(
    dataset: Items,
    fname: PathLike,
    nfiles: int | None = None,
    verbose: bool = False,
    *,
    executor: ExecutorLike = None,
) -> None:
    """Write all items of a data set as records: to one file, or to ``PART_00000.ffr``, … in a folder.

    Parts are written by parallel processes, which get the data set by fork or pickle, depending on the start method of
    ``multiprocessing``. A single part, and all parts in a daemonic process, are written by this process. The file, or
    the folder with all parts, appears when everything is written. If writing fails, is interrupted or killed, nothing
    appears.

    Args:
        dataset: has ``len()`` and ``[i]``; items are bytes, arrays or other contiguous buffers.
        fname: the file (nfiles = 1), whose name must end in ``.ffr``, or the folder, which must be missing or empty.
        nfiles: the number of parts, limited to the number of items. None: the number that ``plan_parts`` recommends
            for the size of this data set, always in a folder.
        verbose: print a line for each part.
        executor: where the parts are written, as for ``pack_folder``. The data set is pickled for each part, and a part
            that fails is tried three times. None: in processes of this machine, as above, each part once.

    Raises:
        UsageError: bad arguments.
        WriteError: the operating system could not write.
        WorkerError: a process was killed, or none could be started. Also, whatever the data set or
            ``FileWriter.write_one`` raises in a process.

    Examples:
        >>> fffs.utils.dump([b"one", b"two", b"three"], "new.ffr", nfiles=1)
        >>> fffs.FileReader("new.ffr").n
        3

    """
    target, n = without_zero(fname), len(dataset)
    if not is_url(target):
        target = os.path.realpath(target)
    elif nfiles != 1:
        raise UsageError(f"{target}: a store cannot put several objects in place together; use nfiles=1")
    check_positive(nfiles=nfiles)
    if nfiles == 1:
        _write_part(dataset, target, 0, n, verbose)
        return
    count = plan_parts(guess_size(dataset)) if nfiles is None else operator.index(nfiles)
    count = max(min(count, n), 1)
    bounds = [n * k // count for k in range(count + 1)]
    refuse_content(target)
    refuse_folder(os.fsencode(target), target)
    make_folder(os.path.dirname(target))
    with new_folder(target) as here:
        parts = [(os.path.join(here, ffrecord_part("", k, count)), bounds[k], bounds[k + 1]) for k in range(count)]
        _write_parts(dataset, parts, verbose, executor)


def guess_size(dataset: Items) -> int:
    """Estimate the total size of all items from a sample."""
    n = len(dataset)
    count = min(n, SAMPLES)
    return sum(readable_bytes(dataset[n * k // count]).nbytes for k in range(count)) * n // max(count, 1)


def _write_part(dataset: Items, path: str, start: int, stop: int, verbose: bool) -> None:
    """Write items to a file."""
    with FileWriter(path, stop - start) as writer:
        for i in range(start, stop):
            writer.write_one(dataset[i])
    if verbose:
        tell(f"{os.path.basename(path)}: {stop - start} records")


def _write_parts(dataset: Items, parts: list[tuple[str, int, int]], verbose: bool, executor: ExecutorLike) -> None:
    """Write all parts. Raises the exception of the first one that fails, after the others have ended."""

    def calls(*given: Any) -> list[Call]:
        shown = "{}: items {} to {}".format
        return [Call(_write_part, (*given, *part, verbose), shown(*part)) for part in parts]

    if executor is not None:
        with executing(executor) as workers:
            assert workers is not None
            _finish(run_calls(calls(dataset), workers))
    elif len(parts) == 1 or multiprocessing.current_process().daemon:  # a daemonic process may have no children
        for part in parts:
            _write_part(dataset, *part, verbose)
    else:
        count = min(len(parts), len(os.sched_getaffinity(0)), PROCESSES_MAX)
        with Processes(count, multiprocessing.get_start_method(), (dataset,)) as processes:
            _finish(run_calls(calls(), processes, tries=1))


def _finish(results: Generator[object, None, None]) -> None:
    with contextlib.closing(results):
        for _ in results:
            pass
