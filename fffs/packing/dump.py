"""dump: writes the items of an indexable object as record files, in parallel processes; all files appear or none."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import operator
import os
import pickle
import signal
import sys
import time
import traceback
from typing import Any, Protocol

from fffs.base.buffers import readable_bytes
from fffs.base.failures import writing
from fffs.base.paths import PathLike
from fffs.base.text import tell
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
PATIENCE = 1.0  # seconds that a process has to end by SIGTERM
LOOK = 0.1  # seconds between two checks that the parent process is alive, if items do not take longer


class Items(Protocol):
    """An object that can be dumped: it has ``len()``, and ``[i]`` returns the bytes of one record."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def plan_parts(total_bytes: int) -> int:
    """Return the recommended number of parts: at most 200, of at least 256 MiB each; 100 to 200 from 25 GiB on."""
    return min(max(total_bytes // PART_BYTES, 1), PARTS_MAX)


def dump(dataset: Items, fname: PathLike, nfiles: int | None = None, verbose: bool = False) -> None:
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

    Raises:
        UsageError: bad arguments.
        WriteError: the operating system could not write.
        RuntimeError: a process was killed. Also, whatever the data set or ``FileWriter.write_one`` raises in a process.

    """
    target, n = os.fsdecode(fname), len(dataset)
    if not is_url(target):
        target = os.path.realpath(target)
    elif nfiles != 1:
        raise UsageError(f"{target}: a store cannot put several objects in place together; use nfiles=1")
    if nfiles == 1:
        _write_part(dataset, target, 0, n, verbose)
        return
    count = plan_parts(_guess_size(dataset)) if nfiles is None else operator.index(nfiles)
    if count < 1:
        raise UsageError(f"the number of parts must be at least 1, not {count}")
    count = max(min(count, n), 1)
    bounds = [n * k // count for k in range(count + 1)]
    refuse_content(target)
    refuse_folder(os.fsencode(target), target)
    make_folder(os.path.dirname(target))
    with new_folder(target) as here:
        parts = [(os.path.join(here, ffrecord_part("", k, count)), bounds[k], bounds[k + 1]) for k in range(count)]
        if count == 1 or multiprocessing.current_process().daemon:  # a daemonic process may have no children
            for part in parts:
                _write_part(dataset, *part, verbose)
        else:
            _write_in_processes(dataset, parts, verbose)


def _guess_size(dataset: Items) -> int:
    """Estimate the total size of all items from a sample."""
    n = len(dataset)
    count = min(n, SAMPLES)
    return sum(readable_bytes(dataset[n * k // count]).nbytes for k in range(count)) * n // max(count, 1)


def _write_part(dataset: Items, path: str, start: int, stop: int, verbose: bool, parent: Any = None) -> None:
    """Write items to a file. parent: the process that this one must not outlive."""
    look = 0.0
    with FileWriter(path, stop - start) as writer:
        for i in range(start, stop):
            if parent is not None and time.monotonic() >= look:
                if not parent.is_alive():
                    sys.exit("the parent process is gone")  # only the parent can rename the folder
                look = time.monotonic() + LOOK
            writer.write_one(dataset[i])
    if verbose:
        tell(f"{os.path.basename(path)}: {stop - start} records")


# ---------------------------------------------------------------- processes

Part = tuple[str, int, int]


def _write_in_processes(dataset: Items, parts: list[Part], verbose: bool) -> None:
    """Write all parts. Raises the exception of the first process that fails, after all processes have ended."""
    context = multiprocessing.get_context()
    count = min(len(parts), len(os.sched_getaffinity(0)), PROCESSES_MAX)
    waiting: dict[Any, Any] = {}  # pipe -> process
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
            _end(process)


def _end(process: Any) -> None:
    """Join a process that was told to end. It may have had no time to restore the default of SIGTERM."""
    # Not is_alive(): in a program that ignores SIGCHLD, it does not notice the end, and the number may be used again.
    if not multiprocessing.connection.wait([process.sentinel], PATIENCE):
        process.kill()
    process.join()


def _start(context: Any, dataset: Items, parts: list[Part], verbose: bool) -> tuple[Any, Any]:
    """Start a process that writes some parts. Returns the pipe that it reports through, and it. Raises WriteError."""
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
    """Join a process. Raises the exception that it sent, or RuntimeError if it ended without sending anything."""
    try:
        what, text, pickled = pipe.recv()
    except EOFError:
        process.join()
        code = process.exitcode  # None in a program that ignores SIGCHLD
        why = f"killed by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        raise RuntimeError(f"a process that was writing parts of the data set ended early: {why}") from None
    process.join()
    if what:
        error = _load_error(pickled) or RuntimeError(what)
        raise error from RuntimeError(f"in a process that was writing parts of the data set:\n{text}")


def _load_error(pickled: bytes) -> BaseException | None:
    """Return the exception of a process; None if it cannot be pickled or, as with arguments of its own, loaded."""
    try:
        error = pickle.loads(pickled)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None


def _work(dataset: Items, parts: list[Part], verbose: bool, pipe: Any) -> None:
    """Write parts in a child process, then send three empty values, or what failed, its traceback and the exception."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent also receives SIGINT, and terminates this process
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the parent's handler, which may do something else than end it
    signal.set_wakeup_fd(-1)
    try:
        for part in parts:
            _write_part(dataset, *part, verbose, multiprocessing.parent_process())
    except BaseException as error:
        what = "".join(traceback.format_exception_only(error)).strip()
        pipe.send((what, traceback.format_exc(), _pickle_error(error)))
    else:
        pipe.send(("", "", b""))


def _pickle_error(error: BaseException) -> bytes:
    try:
        return pickle.dumps(error)
    except Exception:
        return b""
