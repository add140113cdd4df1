"""pack_folder: packs a folder into one FFRecord file, losslessly, in memory for the names but not for the contents."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fffs.base.failures import writing
from fffs.base.importing import importing
from fffs.base.jobs import Progress, default_jobs
from fffs.base.numbers import check_positive
from fffs.base.paths import PathLike
from fffs.base.text import tell
from fffs.errors import UsageError
from fffs.files.atomic_output import AtomicOutput
from fffs.files.targets import refuse_file
from fffs.formats.ffrecord import SUFFIX
from fffs.objects.names import is_url
from fffs.objects.new_object import new_output
from fffs.packing.contents import pack_contents
from fffs.packing.left_out import LeftOut, refuse_objects
from fffs.packing.object_folder import ObjectFolder
from fffs.packing.packer import PackSummary, copied
from fffs.packing.protect import commit, refuse_verity
from fffs.packing.scan import ExcludedOutput, scan_folder
from fffs.packing.source_folder import open_source

if TYPE_CHECKING:
    from fffs.cluster.executors import ExecutorLike
    from fffs.cluster.report import JobReport

log = logging.getLogger("fffs.pack")


def pack_folder(
    dirname: PathLike,
    fname: PathLike,
    verbose: bool = False,
    *,
    jobs: int | None = None,
    align: bool = False,
    verity: bool = False,
    parts: int | None = None,
    executor: ExecutorLike = None,
    restart: bool = False,
    keep_going: bool = False,
    progress: Progress | None = None,
    warn: Callable[[str], None] | None = None,
    report: Callable[[JobReport], None] | None = None,
) -> PackSummary:
    """Pack a folder into the file or object ``fname``, which appears complete or not at all; or into several files.

    Kept: names, contents, modes, modification times (ns), symbolic links, hard links, empty folders. Not kept: owners,
    access times, extended attributes. FIFOs, sockets and devices are left out with a warning; ``fname`` itself is left
    out without one. The same folder gives the same bytes, with any number of jobs. ffrecord reads the result: it shows
    symbolic links to files as files, and no other symbolic links.

    Args:
        dirname: the folder, or the URL of one, which ends with a slash: its objects become files with the mode 0644.
        fname: the file to write, or the URL of an object; its name must end in ``.ffr``.
        verbose: print a line when done.
        jobs: how many files are copied at once.
        align: let each file begin where ``-o kernel`` of a mount needs it: at a multiple of 512 bytes, or of 4096 from
            64 KiB on. Records of zeros fill the gaps, so records have other numbers than without; names lead to the
            right ones everywhere.
        verity: put the file under fs-verity, compare it with its checksums, and keep its digest in ``fname.fsverity``.
        parts: make a folder ``fname`` with this number of files, ``NAME-00000-of-00020.ffr`` and so on, which together
            are the packed folder. It appears with all of them at once. ``plan_pack`` describes them.
        executor: where the parts are written: any ``concurrent.futures.Executor``, an object with the same ``submit``,
            or a name such as ``"processes:8"``. A part whose worker dies is written again, twice at most. None: one
            part after the other in this process. An executor that is passed is not shut down.
        restart: with ``parts``, remove what an earlier call left that was killed, instead of going on with it.
        keep_going: leave out files and folders of a local folder that cannot be read, and files that change while they
            are packed, and warn of each. The bytes are those of a folder without them, or with empty folders.
        progress: called with (bytes done, total bytes) from time to time, from any thread.
        warn: called with one line for each thing that is left out or changed, and for each attempt at a part that
            failed; the default logs it.
        report: with ``parts``, called with a ``fffs.JobReport``, which says what each part took, when a part is
            complete or an attempt failed, and at the end, also before an error is raised.

    Returns:
        How many files were packed (hard links count once), and their bytes; as ``unread`` and ``changed``, how many
        inputs were left out because of ``keep_going``.

    Raises:
        SourceNotFoundError, UsageError, ReadError: the folder, or something in it, cannot be read.
        UsageError: also if ``verity`` is True, and the file system or the kernel has no fs-verity.
        RecordError: with ``verity``, the disk does not return what was written.
        SourceChangedError: a file changed while it was packed; the message names it.
        WriteError: the file cannot be written; an existing one is unchanged. Also if another process is writing the
            parts.
        WorkerError: the worker of a part died three times, or the executor failed.

    Examples:
        >>> fffs.pack_folder("photos", "new.ffr")
        PackSummary(files=3, total_bytes=28)

    """
    check_positive(jobs=jobs)
    target = os.fsdecode(fname)
    if parts is not None:
        if verity:
            raise UsageError(f"{target}: fs-verity is for single files; omit verity or parts")
        with importing:
            from fffs.cluster.report import JobWatch
            from fffs.packing.pack_parts import pack_parts
            from fffs.packing.pack_task import PackOptions
        watch = JobWatch(progress, warn or log.warning, report)
        options = PackOptions(align, keep_going)
        summary = pack_parts(dirname, target, parts, executor, jobs, options, restart, watch, warn or log.warning)
        return _told(summary, target, verbose)
    if executor is not None or restart or report:
        raise UsageError(f"{target}: executor, restart and report are for parts; give their number, too")
    if verity:
        refuse_verity(target)
    with packed_folder(dirname, target, jobs, progress, warn or log.warning, align, keep_going) as (file, summary):
        commit(file, verity, progress)
    return _told(summary, target, verbose)


def _told(summary: PackSummary, target: str, verbose: bool) -> PackSummary:
    if verbose:
        tell(f"{target}: {summary.files} files, {summary.total_bytes} bytes")
    return summary


@contextlib.contextmanager
def packed_folder(
    dirname: PathLike,
    target: str,
    jobs: int | None,
    progress: Progress | None,
    warn: Callable[[str], None],
    align: bool = False,
    keep_going: bool = False,
) -> Iterator[tuple[AtomicOutput, PackSummary]]:
    """Yield the complete packed file, which replaces ``target`` when the block commits it. As ``pack_folder``."""
    if not target.endswith(SUFFIX):
        raise UsageError(f"{target}: the name of a packed folder must end in {SUFFIX}")
    refuse_objects(os.fsdecode(dirname), keep_going)
    if is_url(os.fsdecode(dirname)):
        with _packed_objects(os.fsdecode(dirname), target, jobs, progress, warn, align) as packed:
            yield packed
        return
    output = None
    if not is_url(target):
        refuse_file(target)
        with writing(target):
            output = ExcludedOutput(os.fsencode(target))
    left_out, threads = LeftOut(), jobs or default_jobs()
    with contextlib.ExitStack() as stack:
        with open_source(os.fsencode(dirname), left_out if keep_going else None) as source:
            # Scan first: creating the output may change the modification time of a folder that is packed.
            scan = scan_folder(source, output, warn)
            done = stack.enter_context(copied(scan, source, align, lambda: new_output(target), threads, progress))
        for line in left_out.lines:
            warn(line)
        yield done.file, done.summary.with_left_out(left_out.unread, left_out.changed)


@contextlib.contextmanager
def _packed_objects(
    url: str, target: str, jobs: int | None, progress: Progress | None, warn: Callable[[str], None], align: bool
) -> Iterator[tuple[AtomicOutput, PackSummary]]:
    """Yield the complete file of the objects in a folder of a store, as ``packed_folder``."""
    with ObjectFolder(url, warn, output=target) as folder:
        if not is_url(target):
            refuse_file(target)
        contents = folder.scan()
        with new_output(target) as file:
            pack_contents(folder, contents, file, jobs or default_jobs(), progress, align)
            yield file, PackSummary(len(contents.sizes), contents.total_bytes)
