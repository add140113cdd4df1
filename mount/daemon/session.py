"""The life of one mount: open the sources, mount, serve, unmount. Runs in the main thread of its process."""

from __future__ import annotations

import errno
import functools
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from fffs.base.descriptors import describe, describe_shortage, is_lack_of_threads
from fffs.errors import FffsError, MountError
from fffs.layouts import load_shown
from fffs.layouts.view import View
from fffs.mount.daemon.job import Job
from fffs.mount.daemon.log import write_out
from fffs.mount.daemon.log_file import refuse_source
from fffs.mount.system import kernel
from fffs.mount.system.fusermount import spare_descriptors
from fffs.mount.system.mountpoint import MountPoint, is_alive
from fffs.mount.system.mounts import TYPE, Mount, cover_of, open_table
from fffs.mount.system.place import Place

try:
    import pyfuse3
    import trio

    from fffs.mount.daemon import fastpath
    from fffs.mount.daemon.readonly import keep_read_only
    from fffs.mount.daemon.renewal import keep_access
    from fffs.mount.daemon.signals import SignalPipe, ignore_signals, leave_when_signalled
    from fffs.mount.fs.operations import Operations
    from fffs.mount.fs.statistics import Statistics
    from fffs.mount.fs.waiting import in_thread
except ModuleNotFoundError as error:
    raise MountError(f"mounting needs pyfuse3 and trio, and {error.name} is missing: {kernel.PACKAGES}") from error
except ImportError as error:  # of a shared library: libfuse was removed, or upgraded to another version
    raise MountError(f"mounting needs pyfuse3, which cannot be imported ({error}): {kernel.PACKAGES}") from error

_log = logging.getLogger("fffs.mount")

# A request that waits for a disk occupies one of pyfuse3's tasks. If all were occupied, other requests would wait, too.
TASKS = 100_000
# How long open files are served after a lazy unmount by a signal.
GRACE = 1.0
WARNINGS_SHOWN = 10


def serve(job: Job, ready: Callable[[], None] = lambda: None, lifelines: Sequence[int] = ()) -> list[Mount]:
    """Mount and serve until the file system is unmounted, or a signal (SIGTERM, SIGINT, SIGHUP) ends it.

    Must run in the main thread, and once per process: pyfuse3's session is global, and the signal handlers stay.

    Args:
        job: what to mount where.
        ready: called when the mount answers.
        lifelines: descriptors; the mount ends when one of them becomes readable or is closed at the other end.

    Returns:
        What is still mounted, but dead, because no process could be started to unmount it.

    Raises:
        FffsError: mounting failed, and nothing is mounted.

    """
    try:
        return _serve(job, ready, lifelines)
    except BaseException as error:
        if shortage := _find_shortage(error):
            raise MountError(f"{job.mountpoint}: cannot serve it: {shortage}") from error
        raise


def _find_shortage(error: BaseException) -> str:
    """Return which resource this process or the system lacks, if that is the reason; looks into exception groups."""
    if not isinstance(error, FffsError) and (shortage := describe_shortage(error)):
        return shortage
    return next(filter(None, map(_find_shortage, getattr(error, "exceptions", ()))), "")


def _serve(job: Job, ready: Callable[[], None], lifelines: Sequence[int]) -> list[Mount]:
    leave_when_signalled()
    options = job.options
    with load_shown(
        job.sources, options.suffix, options.verify, options.format, options.decode, options.prefix
    ) as view:
        if options.log:  # before any line about the source
            refuse_source(options.log, (file.index.path for file in view.store.files if file.file.descriptor >= 0))
        for line in view.warnings[:WARNINGS_SHOWN]:
            _log.warning("%s", line)
        if len(view.warnings) > WARNINGS_SHOWN:
            _log.warning("and %d more of these", len(view.warnings) - WARNINGS_SHOWN)
        if limits := view.store.use_caches():
            _log.warning("%s: what is read of the store is kept on this disk %s", job.mountpoint, limits)
        view.store.watch()
        table, signals = open_table(), SignalPipe()  # never closed: threads may still use them
        point = MountPoint(job.mountpoint, options.nonempty, table)
        try:
            with spare_descriptors():
                return _Session(job, view, point, ready, lifelines, signals, table).run()
        finally:
            point.remove()
            ignore_signals()


class _Session:
    """The state that the tasks of the event loop share."""

    def __init__(
        self,
        job: Job,
        view: View,
        point: MountPoint,
        ready: Callable[[], None],
        lifelines: Sequence[int],
        signals: SignalPipe,
        table: int,
    ) -> None:
        self._job, self._point, self._ready, self._lifelines, self._signals = job, point, ready, lifelines, signals
        self._view, self._table = view, table
        self._operations = Operations(view, job.options, Statistics(view, self._native_stats))
        self._announced = False
        self._stopping = False
        self._detached = False
        self._left: list[Mount] = []
        self._lacking: list[Mount] = []  # of these, those that the lack of a process left
        self._overdue = False
        self._error: MountError | None = None
        self._native_failures = 0, False
        self._serving = trio.CancelScope()

    def run(self) -> list[Mount]:
        """Mount and serve. Otherwise as ``serve``."""
        job = self._job
        self._attach()
        initialised = False
        try:
            # Given a descriptor in this form, libfuse serves it, and neither mounts nor unmounts.
            pyfuse3.init(self._operations, f"/dev/fd/{self._connection.number}", set())
            initialised = True
            trio.run(self._main)
        except BaseException:
            # A mount in use must not become an empty folder, which looks valid. It stays, dead, as after a kill, and
            # every command that finds it says how to remove it.
            self._detached = self._announced
            raise
        finally:
            with closing(self._place):
                if not self._detached:
                    self._detach(lazy=True)
            if initialised:  # without a session it crashes
                pyfuse3.close(unmount=False)
            if not self._connection.close():
                self._point.remove()
                write_out()
                os._exit(0)
            self._detach_again()
        self._finish()
        if self._error:
            raise self._error
        if not self._announced and not self._stopping:
            raise MountError(f"{job.mountpoint}: unmounted before it was ready")
        return self._lacking

    def _native_stats(self) -> dict[str, Any]:
        return self._connection.stats() if isinstance(self._connection, fastpath.FastPath) else {}

    def _attach(self) -> None:
        """Mount, and connect to the kernel."""
        job, options = self._job, self._job.options
        with self._point.examined() as folder:
            fd = kernel.attach(
                kernel.MountRequest(job.mountpoint, folder, job.name, options.allow_other, options.noexec)
            )
        try:
            self._place = Place(job.mountpoint, job.name, fd, self._table)
            try:
                self._connection = fastpath.connect(fd, self._view, job.options, job.debug)
            except BaseException:
                with closing(self._place):
                    self._place.detach(lazy=True)
                raise
        except BaseException:
            os.close(fd)
            raise

    def _finish(self) -> None:
        summary = self._operations.failures.summary(*self._native_failures)
        if summary:
            _log.warning("%s: %s", self._job.mountpoint, summary)
        for mount in self._left:
            if not cover_of(mount, self._table):  # otherwise the log says so already
                _log.error("%s: still mounted, without a daemon", mount.path)
        if not self._left:
            _log.info("%s: unmounted", self._job.mountpoint)

    async def _main(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_signals, nursery)
            for fd in self._lifelines:
                nursery.start_soon(self._watch_lifeline, fd)
            await self._connection.connect()
            if isinstance(self._connection, fastpath.FastPath):
                nursery.start_soon(self._connection.watch, self._operations.failures)
            nursery.start_soon(
                keep_read_only, self._job.mountpoint, self._table, self._place.device, self._job.options.noexec
            )
            nursery.start_soon(self._announce)
            nursery.start_soon(keep_access, [file.file for file in self._view.store.files])
            nursery.start_soon(self._give_up)
            await self._serve()
            if isinstance(self._connection, fastpath.FastPath):
                self._native_failures = self._connection.count_failures()
            nursery.cancel_scope.cancel()

    async def _serve(self) -> None:
        """Serve until the connection ends, in whatever way."""
        try:
            with self._serving:
                await pyfuse3.main(max_tasks=TASKS)
        except BaseException as error:
            if not _is_abort(error):
                raise
        if not self._stopping and self._place.is_mounted():
            _log.error("%s: its connection to the kernel was aborted", self._job.mountpoint)

    # ------------------------------------------------------------ tasks

    async def _announce(self) -> None:
        """Report success when the kernel has the reply to its first message; other requests wait until then.

        Never stat() our own mount: if we are killed while the call is in flight, the thread waits in the kernel for a
        reply that only we could send, and the process can never exit.
        """
        await self._connection.connected.wait()
        if self._stopping:  # by a signal, before it was ready
            return
        kernel.read_ahead(self._place.device, self._job.options.readahead)
        _log.info("%s: mounted %s", self._job.mountpoint, self._job.name)
        try:
            self._ready()
            self._announced = True
        except OSError as error:  # for example, the process that waited for it has ended
            self._error = MountError(f"{self._job.mountpoint}: {describe(error)}")
            await self._stop()

    async def _watch_signals(self, nursery: trio.Nursery) -> None:
        while True:
            number = await self._signals.get()
            if self._overdue:  # a second signal, because a disk does not answer
                self._point.remove()
                write_out()
                os._exit(128 + number)
            if not self._stopping:
                _log.info("%s: %s", self._job.mountpoint, signal.Signals(number).name)
                nursery.start_soon(self._stop)

    async def _give_up(self) -> None:
        """End some time after the connection, even if a read waits for its disk: no process waits for its reply."""
        await self._connection.ended()
        await trio.sleep(fastpath.PATIENCE)
        self._serving.cancel()

    async def _watch_lifeline(self, fd: int) -> None:
        await trio.lowlevel.wait_readable(fd)
        await self._stop()

    # ------------------------------------------------------------ the end

    async def _stop(self) -> None:
        """Unmount, lazily if necessary. pyfuse3's loop answers the requests in flight and ends, and cancels this; reads
        that wait for a disk or a store that does not answer are given up.
        """
        if self._stopping:
            return
        self._stopping = True
        try:
            await in_thread(functools.partial(self._detach, False), abandon=False)
        except kernel.BusyError:
            _log.info("%s: in use, unmounting lazily", self._job.mountpoint)
            await in_thread(functools.partial(self._detach, True), abandon=False)
            await trio.sleep(GRACE)
        pyfuse3.terminate()
        await trio.sleep(GRACE)
        self._overdue = True
        await trio.sleep(fastpath.PATIENCE)
        self._serving.cancel()

    def _detach(self, lazy: bool) -> None:
        """Unmount, unless another process has already unmounted it."""
        if self._place.is_mounted():
            self._left = self._place.detach(lazy)
            if not self._left:
                self._point.remove()  # now: open files may be served for long, and an empty folder looks valid
        self._detached = True

    def _detach_again(self) -> None:
        """Try again to unmount what is left: threads have ended, so that fusermount3 can perhaps be started.

        Why it is left is in the log already. If others unmounted it meanwhile, its numbers may be those of their mount.
        """
        tried, self._left = self._left, []
        for mount in tried:
            found = kernel.find_again(mount, self._table)
            if not found:
                continue
            if cover_of(found, self._table):
                self._left.append(mount)
                continue
            if self._is_of_others(found):
                continue
            try:
                kernel.detach(mount, lazy=True, table=self._table)
            except kernel.NoProcessError:
                self._left.append(mount)
                self._lacking.append(mount)
            except MountError:
                self._left.append(mount)

    def _is_of_others(self, mount: Mount) -> bool:
        """Whether a mount that has the numbers of ours is not ours, which nobody serves any more."""
        if (mount.type, mount.source) != (TYPE, self._job.name):
            return True
        try:
            return is_alive(mount.path)
        except RuntimeError as error:
            if not is_lack_of_threads(error):
                raise
            return False


def _is_abort(error: BaseException) -> bool:
    """Whether it is the error that libfuse makes of the end of a connection while it reads a request."""
    parts: tuple[BaseException, ...] = getattr(error, "exceptions", ())  # trio raises exception groups
    if parts:
        return all(map(_is_abort, parts))
    return isinstance(error, OSError) and error.errno in (errno.ECONNABORTED, errno.ENODEV)
