"""The owner's end of a store process: starts it, asks it from several threads, ends it."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Mapping
from typing import Final

from fffs.base.descriptors import memory_file
from fffs.base.interpreter import STARTED, interpreter
from fffs.base.modules import SAFE, module_path
from fffs.base.stopping import Stopped, pause
from fffs.errors import ReadError, UsageError
from fffs.objects.names import THIS_MACHINE, direct_hosts
from fffs.objects.protocol import BrokenProtocolError, Message, is_readable, read_message, write_message
from fffs.objects.redacting import redact, secrets_of

_START: Final = 60.0  # seconds
_ABORT: Final = 1.0  # seconds for which the owner waits while an upload is aborted
PATIENCE = 120.0  # seconds; the process itself gives up earlier on a store that does not answer
_MODULE: Final = "fffs.objects.store_process"
# With -c alone, the current folder is the first place where modules are looked for. Python 3.10 knows nothing against
# it, but imports nothing before it runs the code; 3.13 does.
_CODE: Final = f"import sys; sys.path[:] = sys.argv[1:]; from {_MODULE} import main; sys.exit(main())"


class ConnectionLostError(Exception):
    """The process ended, or is not to be trusted any more. Another one can be started."""


class StoreConnection:
    """A store process and the pipes to it. Thread-safe.

    There is no thread that waits for answers, because it would have to be started again after a fork: one of the
    threads that wait reads, and leaves the answers of others for them.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._owner_pid = os.getpid()
        self._process, self._stderr = _start(environment)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._numbers = itertools.count(1)
        self._writing = threading.Lock()
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._spools: set[int] = set()  # requests to upload a file that were not answered
        self._answers: dict[int, Message] = {}
        self._reader: int | None = None  # the thread that reads
        self._lost = False
        hello: Message = {}
        try:
            hello, _ = read_message(self._output, time.monotonic() + _START)
        except (BrokenProtocolError, OSError):
            raise self._failed_start(secrets_of(environment)) from None
        finally:
            if "ready" not in hello:
                self.end()
        if hello.get("error"):
            raise UsageError("reading from object stores needs obstore, which is missing: pip install 'fffs[objects]'")

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ask(self, request: Message, patience: float | None = None) -> Message:
        """Send a request and wait for its answer, for PATIENCE or another number of seconds.

        Raises:
            ConnectionLostError: there will be no answer.
            TimeoutError.
            Stopped: the StopFlag of this thread is set.

        """
        number, deadline = next(self._numbers), time.monotonic() + (patience or PATIENCE)
        with self._changed:
            if self._reader == threading.get_ident():  # an interrupt came before it handed out what it had read
                self._lost = True
                self._changed.notify_all()
            if self._lost:
                raise ConnectionLostError
            self._waiting.add(number)
            if request.get("action") == "spool":
                self._spools.add(number)
        answer: Message | None = None
        try:
            self._write({**request, "id": number})
            answer = self._wait(number, deadline)
            return answer
        finally:
            with self._changed:
                if answer is not None:
                    self._spools.discard(number)
                self._waiting.discard(number)
                self._answers.pop(number, None)

    def _write(self, request: Message) -> None:
        """Send a request. If only a part is written, because of an interrupt, later ones would be unreadable."""
        complete = False
        try:
            with self._writing:
                write_message(self._input, request)
            complete = True
        except OSError:
            raise ConnectionLostError from None
        finally:
            if not complete:
                with self._changed:
                    self._lost = True
                    self._changed.notify_all()

    def _wait(self, number: int, deadline: float) -> Message:
        """Return the answer to a request, which this thread or another one reads."""
        while True:
            reads, is_unread, answer = False, False, None
            try:
                with self._changed:
                    while self._reader and number not in self._answers and not self._lost:
                        self._changed.wait(pause(deadline))
                    if number in self._answers:
                        return self._answers.pop(number)
                    if self._lost:
                        raise ConnectionLostError
                    reads, self._reader = True, threading.get_ident()
                while not is_readable(self._output, pause(deadline)):
                    pass
                answer, _ = read_message(self._output, deadline)
            except BrokenProtocolError:
                continue
            except Stopped:
                is_unread = True
                raise
            finally:
                if reads:
                    self._hand_out(answer, is_unread)

    def _hand_out(self, answer: Message | None, is_unread: bool) -> None:
        """Leave an answer for the thread that waits for it. None: it was not read completely, as in an interrupt, or,
        if ``is_unread``, not at all.
        """
        with self._changed:
            self._reader = None
            # What follows a part of an answer cannot be read.
            self._lost = self._lost or (answer is None and not is_unread)
            number = answer.get("id") if answer else None
            if answer and isinstance(number, int) and number in self._waiting:
                self._answers[number] = answer
            self._changed.notify_all()

    def _failed_start(self, secrets: list[str]) -> ReadError:
        """Return the error of a process that did not start. Its last words are in the message."""
        self._process.kill()
        self._process.wait()
        self._stderr.seek(0)
        words = self._stderr.read(1 << 20).decode(errors="replace").strip().splitlines() or ["it said nothing"]
        return ReadError(None, f"the process {_MODULE}", "starting it: " + redact(words[-1], secrets))

    def end(self) -> None:
        """End the process, which aborts what it uploads. Threads that wait for answers get ConnectionLostError."""
        with self._changed:
            self._lost = True
            self._changed.notify_all()
        if not self._spools:
            self._process.kill()
            self._process.wait()
            return
        self._process.terminate()
        try:
            self._process.wait(_ABORT)
        except subprocess.TimeoutExpired:
            self._process.returncode = 0  # it ends when its store has answered; it is not waited for

    def abandon(self) -> None:
        """In a child of fork: close what belongs to the parent, without touching its process and its locks."""
        self._process.returncode = 0  # it is not waited for
        self._close()

    def __del__(self) -> None:
        # The pipes are closed only now that no thread can be reading from their numbers.
        if hasattr(self, "_process"):
            if self._owner_pid != os.getpid():
                self._process.returncode = 0
            elif self._process.returncode is None:
                self._process.kill()
                self._process.wait()
            self._close()

    def _close(self) -> None:
        for file in (self._process.stdin, self._process.stdout, self._stderr):
            if file is not None:
                file.close()


def _start(environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], io.FileIO]:
    """Start a process, and return it with the file of what it writes to its standard error.

    Raises UsageError: there is no interpreter for it; ReadError.
    """
    program = interpreter()
    settings = {**environment, "RUST_BACKTRACE": "0", STARTED: "1"}
    # This machine may be asked without encryption, and so through no proxy. obstore prefers the other of these names.
    direct = direct_hosts(environment)
    direct = direct if direct.strip() == "*" else ",".join(filter(None, [direct, THIS_MACHINE]))
    settings["no_proxy"] = settings["NO_PROXY"] = direct
    stderr: io.FileIO | None = None
    try:
        stderr = io.FileIO(memory_file("fffs-store-stderr"), "w+")  # closed by the connection
        # Not in the environment: it may start other programs.
        command = [program, *SAFE, "-c", _CODE, *module_path()]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            bufsize=0,  # buffers have locks, which another thread may hold at a fork
            env=settings,
            start_new_session=True,  # an interrupt from the terminal is for the owner, which decides what ends
        )
    except OSError as error:
        if stderr is not None:
            stderr.close()
        raise ReadError(error.errno, f"the process {_MODULE}", "starting it") from None
    return process, stderr
