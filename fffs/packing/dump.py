"""dump: the items of an indexable object as record files, written in parallel by processes, all or none of them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import operator
import os
import signal
import sys
import traceback
from typing import Any, Protocol

from fffs.base.failures import writing
from fffs.base.paths import PathLike
from fffs.base.views import readable_bytes
from fffs.errors import UsageError
from fffs.files.atomic_folder import make_folder, new_folder, refuse_content
from fffs.formats.part_names import ffrecord_part
from fffs.writer import FileWriter

PART_BYTES = 256 << 20  # the least that a part should have, by the advice of the format's authors
PARTS_MAX = 200
PROCESSES_MAX = 16
SAMPLES = 256  # items that are looked at to guess how large all are
LOOK = 256  # items between two looks at whether the parent lives


class Items(Protocol):
    """What can be dumped: ``len()``, and ``[i]`` that gives the bytes of one record."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def plan_parts(total_bytes: int) -> int:
    """How many parts a data set should have: each at least 256 MiB, at most 200; 100 to 200 from 25 GiB on."""
    return min(max(total_bytes // PART_BYTES, 1), PARTS_MAX)


def dump(dataset: Items, fname: PathLike, nfiles: int | None = None, verbose: bool = False) -> None:
    """Write all items of a data set as records: to one file, or to ``PART_00000.ffr``, … in a folder.

    Parts are written in parallel by processes, which get the data set by fork or pickle, as ``multiprocessing`` is set
    to do. The file, or the folder with all parts, appears when everything is written; when anything fails, or is
    interrupted or killed, nothing does.

    Args:
        dataset: has ``len()`` and ``[i]``; items are bytes, arrays or other contiguous buffers.
        fname: the file (nfiles = 1), which must end in ``.ffr``, or the folder, which must not exist or be empty.
        nfiles: how many parts; never more than items. None: as many as ``plan_parts`` says for this data set's size,
            always in a folder.
        verbose: print a line for each part.

    Raises:
        UsageError: bad arguments.
        WriteError: the operating system could not write.
        RuntimeError: a process was killed. And whatever the data set or ``FileWriter.write_one`` raises in a process.

    """
    target, n = os.path.realpath(os.fsdecode(fname)), len(dataset)
    if nfiles == 1:
        _write_part(dataset, target, 0, n, verbose)
        return
    count = plan_parts(_guess_size(dataset)) if nfiles is None else operator.index(nfiles)
    if count < 1:
        raise UsageError(f"the number of parts must be at least 1, not {count}")
    count = max(min(count, n), 1)
    bounds = [n * k // count for k in range(count + 1)]
    refuse_content(target)
    make_folder(os.path.dirname(target))
    with new_folder(target) as here:
        parts = [(os.path.join(here, ffrecord_part("", k, count)), bounds[k], bounds[k + 1]) for k in range(count)]
        _write_in_processes(dataset, parts, verbose)


def _guess_size(dataset: Items) -> int:
    """How many bytes all items have, from some of them."""
    n = len(dataset)
    chosen = range(0, n, max(n // SAMPLES, 1))
    return sum(readable_bytes(dataset[i]).nbytes for i in chosen) * n // max(len(chosen), 1)


def _write_part(dataset: Items, path: str, start: int, stop: int, verbose: bool) -> None:
    parent = multiprocessing.parent_process()
    with FileWriter(path, stop - start) as writer:
        for i in range(start, stop):
            if i % LOOK == 0 and parent is not None and not parent.is_alive():
                sys.exit("the process that asked for this part is gone")  # nobody would put it in place
            writer.write_one(dataset[i])
    if verbose:
        print(f"{os.path.basename(path)}: {stop - start} records", flush=True)


# ---------------------------------------------------------------- processes

Part = tuple[str, int, int]


def _write_in_processes(dataset: Items, parts: list[Part], verbose: bool) -> None:
    """Write all parts; raises what the first failing process raised, when no process is left."""
    context = multiprocessing.get_context()
    count = min(len(parts), len(os.sched_getaffinity(0)), PROCESSES_MAX)
    waiting: dict[Any, Any] = {}  # the pipe of each process
    try:
        for k in range(count):
            ours, process = _start(context, dataset, parts[k::count], verbose)
            waiting[ours] = process
        while waiting:
            for pipe in multiprocessing.connection.wait(list(waiting)):
                _finish(pipe, waiting[pipe])
                del waiting[pipe]
    finally:
        for process in waiting.values():
            process.terminate()
        for process in waiting.values():
            process.join()


def _start(context: Any, dataset: Items, parts: list[Part], verbose: bool) -> tuple[Any, Any]:
    """A process that writes some parts, and the pipe that it will answer through. Raises WriteError."""
    with writing(os.path.dirname(parts[0][0]), "starting a process for it"):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(dataset, parts, verbose, theirs), daemon=True)
        try:
            process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
    return ours, process


def _finish(pipe: Any, process: Any) -> None:
    """The end of one process: raise what it sent, or that it sent nothing."""
    try:
        error, text = pipe.recv()
    except EOFError:
        process.join()
        why = f"killed by signal {-process.exitcode}" if process.exitcode < 0 else f"exit code {process.exitcode}"
        raise RuntimeError(f"a process that wrote a part of the data set ended early: {why}") from None
    process.join()
    if error is not None:
        raise error from RuntimeError(f"in a process that wrote a part of the data set:\n{text}")


def _work(dataset: Items, parts: list[Part], verbose: bool, pipe: Any) -> None:
    """Of a process: write parts, and send (None, "") or the exception."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is told, too, and ends this one
    try:
        for part in parts:
            _write_part(dataset, *part, verbose)
    except BaseException as error:
        _send_error(pipe, error)
    else:
        pipe.send((None, ""))


def _send_error(pipe: Any, error: BaseException) -> None:
    text = traceback.format_exc()
    try:
        pipe.send((error, text))
    except Exception:  # it cannot be pickled
        pipe.send((RuntimeError(f"{type(error).__name__}: {error}"), text))
