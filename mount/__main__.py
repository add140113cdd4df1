"""The daemon's process, ``python -m fffs.mount MOUNTPOINT --job=FD``, which ``fffs.mount.daemon.background`` starts."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from contextlib import suppress

from fffs.base.descriptors import allow_many, describe_shortage, open_standard_streams
from fffs.base.modules import restore_variables
from fffs.errors import FffsError, MountError
from fffs.mount.daemon.background import report
from fffs.mount.daemon.job import Job
from fffs.mount.daemon.log import DaemonLog, write_out
from fffs.mount.system.kernel import become_fusermount
from fffs.mount.system.mounts import Mount

_logger = logging.getLogger("fffs.mount")


class _Daemon:
    """Reports to the process that started the daemon when the mount is ready or has failed."""

    def __init__(self, fd: int, detach: bool) -> None:
        self._fd, self._detach = fd, detach
        self._reported = False
        self._log: DaemonLog | None = None
        self._left: list[Mount] = []

    def run(self, job: Job, lifelines: list[int]) -> int:
        try:
            self._log = DaemonLog(job.options.log, job.debug, quiet=not job.debug)
            if job.options.kernel is False or not self._hold(job, lifelines):
                from fffs.mount.daemon.session import serve

                self._left = serve(job, self.ready, lifelines)
            self._log.exit_code = 0
        except FffsError as error:
            return self._fail(error)
        except Exception as error:
            if shortage := describe_shortage(error):
                return self._fail(MountError(f"{job.mountpoint}: cannot serve it: {shortage}"))
            self.report(MountError(f"{job.mountpoint}: unexpected {type(error).__name__}: {error}"))
            raise
        return 0

    def _fail(self, error: FffsError) -> int:
        if self._reported:
            _logger.error("%s", error)
        self.report(error)
        return error.exit_code

    def _hold(self, job: Job, lifelines: list[int]) -> bool:
        """Let the kernel mount alone. Returns False if a daemon shall serve the mount."""
        if not lifelines:
            return False  # the process that started this one has tried
        from fffs.mount.daemon.kernel_mount import hold

        return hold(job, self.ready, lifelines)

    def ready(self) -> None:
        """Report that the mount answers, after leaving the terminal if that is wanted."""
        if self._detach and self._log:
            # Not earlier: until now, Ctrl-C on the terminal must reach this process, too.
            os.setsid()
            self._log.leave_terminal()
        self.report(None)

    def report(self, error: BaseException | None) -> None:
        if not self._reported:
            self._reported = True
            report(self._fd, error)

    def end(self) -> None:
        """Unmount what is left where no process can be started. Does not return if fusermount3 can be run."""
        for mount in self._left:
            _logger.warning("%s: fusermount3 takes the place of the daemon to unmount it", mount.path)
            write_out()
            become_fusermount(mount)


def _stop_ignoring_signals() -> None:
    """Undo what a parent ignores: SIGCHLD, without which exit codes are lost, and signals that end a daemon."""
    for number in (signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def main() -> int:
    """Run the daemon."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # blocked by the process that started this one
    restore_variables()
    open_standard_streams()
    allow_many()
    _stop_ignoring_signals()
    parser = argparse.ArgumentParser(prog="python -m fffs.mount")
    parser.add_argument("mountpoint", help="shown in the list of processes")
    parser.add_argument("--job", type=int, required=True)
    parser.add_argument("--report", type=int, required=True)
    parser.add_argument("--lifeline", type=int, action="append", default=[])
    parser.add_argument("--detach", action="store_true")
    args = parser.parse_args()
    os.set_inheritable(args.report, False)
    with open(args.job, "rb") as file:
        file.seek(0)
        job = Job.decode(file.read().decode())
    with suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
        comm.write("fffs")  # the name that ps(1) and top(1) show
    daemon = _Daemon(args.report, args.detach)
    code = daemon.run(job, args.lifeline)
    daemon.end()
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(130)
