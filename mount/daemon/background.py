"""Starts a daemon in a new process, and receives its report: ready, or the exception that prevented that.

The process is not forked from this one, whose threads would make that unsafe.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import IO, Any, BinaryIO

from fffs.base.descriptors import describe, memory_file, pipe, process_file
from fffs.base.importing import importing
from fffs.base.interpreter import interpreter
from fffs.base.jobs import Progress
from fffs.base.modules import module_variables
from fffs.errors import FffsError, MountError
from fffs.mount.daemon.job import Job
from fffs.objects.overrides import with_absolute_paths

# Seconds that a daemon that cannot mount has for ending itself, and then the kernel for ending it.
END_SECONDS = 10.0
KILL_SECONDS = 1.0


def start(job: Job, progress: Progress | None = None) -> None:
    """Mount, and start a daemon that outlives this process, unless the kernel needs none. Returns when it answers.

    progress: called with (bytes verified, total bytes) if everything is verified first.

    Raises:
        FffsError: mounting failed, perhaps in the daemon, which reported the exception.

    """
    if job.options.kernel is not False:
        with importing:
            from fffs.mount.daemon.kernel_mount import mount_without_daemon
        if mount_without_daemon(job, progress):
            return
    process = spawn(job, "--detach")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # the process is meant to run on
        del process


def spawn(job: Job, *arguments: str, lifeline: bool = False) -> subprocess.Popen[bytes]:
    """Start a daemon, wait until its mount answers, and return its process.

    Args:
        job: what to mount where.
        arguments: further arguments for ``python -m fffs.mount``.
        lifeline: make the daemon unmount when this process closes the pipe that is the daemon's stdin, or ends, even if
            other processes hold the pipe. The daemon gets its own session.

    Raises:
        FffsError: the exception that the daemon reported. The daemon has ended.

    """
    try:
        return _spawn(job, arguments, lifeline)
    except OSError as error:
        if isinstance(error, FffsError):
            raise
        raise MountError(f"{job.mountpoint}: cannot start a daemon: {describe(error)}{_advice(error)}") from error


def _advice(error: OSError) -> str:
    """Return which file is missing, such as /dev/null, and what to do if this user, or root in a container, cannot run
    the interpreter.
    """
    if isinstance(error, (PermissionError, FileNotFoundError)) and error.filename == interpreter():
        return f": {error.filename}; install Python and fffs where this user can run them"
    return f": {os.fsdecode(error.filename)}" if error.filename else ""


def _spawn(job: Job, arguments: Sequence[str], lifeline: bool) -> subprocess.Popen[bytes]:
    ours, its = pipe()
    with open(ours, "rb") as report:
        try:
            process = _start_daemon(job, its, arguments, lifeline)
        finally:
            os.close(its)
        try:
            error = _receive(report, process)
        except EOFError:
            _end(process)
            how = _how(process.returncode)
            raise MountError(f"{job.mountpoint}: not mounted: the daemon ended{how} before it was ready") from None
        except BaseException:
            process.terminate()
            _end(process)
            raise
    if error is None:
        return process
    _end(process)
    raise error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a daemon that is about to end, and kill it if it does not end. If it still does not end, do not wait: it
    is in an uninterruptible call, of a file system that does not answer.
    """
    if process.stdin:
        process.stdin.close()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    finally:  # also after Ctrl-C
        if process.poll() is None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILL_SECONDS)


def _receive(report: BinaryIO, process: subprocess.Popen[bytes]) -> BaseException | None:
    """Return the report, or EOFError if the daemon ended without one. The end of the pipe does not show that: a process
    that another thread forks meanwhile may hold the writing end.
    """
    poll = select.poll()
    poll.register(report, select.POLLIN)
    try:
        daemon = process_file(process.pid)
    except OSError:  # a sandbox
        poll.poll()
    else:
        with open(daemon, "rb", buffering=0):
            poll.register(daemon, select.POLLIN)
            if report.fileno() not in dict(poll.poll()):
                raise EOFError
    error: BaseException | None = pickle.load(report)
    return error


def _start_daemon(job: Job, report: int, arguments: Sequence[str], lifeline: bool) -> subprocess.Popen[bytes]:
    """Start the process. The job is passed in an unnamed file: arguments have a limited length, and every user can read
    them.
    """
    with _unnamed_file() as file:
        file.write(job.encode().encode())
        file.flush()
        fds = (report, file.fileno())
        options = [f"--job={file.fileno()}", f"--report={report}", *arguments]
        command = [interpreter(), "-m", "fffs.mount", job.mountpoint, *options]
        environment = _environment(job)
        if lifeline:
            return _start_owned(command, fds, environment)
        return _start(command, fds, environment, stdin=subprocess.DEVNULL)


def _unnamed_file() -> IO[bytes]:
    try:
        return open(memory_file("fffs-job"), "wb")
    except OSError:  # an old system, or a sandbox
        return tempfile.TemporaryFile()


def _start(
    command: list[str], fds: Sequence[int], environment: dict[str, str], **options: Any
) -> subprocess.Popen[bytes]:
    # An interrupt from a terminal reaches the daemon as well, which unblocks it when it has imported its modules.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, cwd="/", env=environment, pass_fds=tuple(fds), **options
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_owned(command: list[str], fds: Sequence[int], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a process with two lifelines: a pipe, which this process closes even by exec; and a pidfd of this process,
    because forked children hold their ends of the pipe.
    """
    end, kept = pipe()
    owner: list[int] = []
    try:
        with suppress(OSError):  # a sandbox
            owner.append(process_file(os.getpid()))
        lifelines = [f"--lifeline={fd}" for fd in (0, *owner)]
        process = _start([*command, *lifelines], (*fds, *owner), environment, stdin=end, start_new_session=True)
    except BaseException:
        os.close(kept)
        raise
    finally:
        for fd in (end, *owner):
            os.close(fd)
    process.stdin = os.fdopen(kept, "wb")
    return process


def _environment(job: Job) -> dict[str, str]:
    """Return an environment in which the daemon imports the same modules as this process, whatever its folder, and
    finds the same files.
    """
    # Without this, numpy would start a thread for each processor, and end the daemon where it may not.
    threads = {"OPENBLAS_NUM_THREADS": "1"}
    inherited = {**with_absolute_paths(os.environ), **job.environment}
    return {**threads, **inherited, **module_variables()}


def _how(code: int) -> str:
    if code == 0:  # also if the code is unknown, in a process that ignores SIGCHLD
        return ""
    return f" by {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"


def report(fd: int, error: BaseException | None) -> None:
    """In the daemon: report that the mount is ready (None), or the error. Closes fd.

    Raises:
        BrokenPipeError: the process that started the daemon no longer waits.

    """
    # Pickling keeps the type and attributes of the exception. It is safe, because both ends are this program.
    try:
        data = pickle.dumps(error)
    except Exception:
        data = pickle.dumps(MountError(f"{type(error).__name__}: {error}"))
    with open(fd, "wb") as pipe:
        pipe.write(data)
