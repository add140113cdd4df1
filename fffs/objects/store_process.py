"""The process that talks to stores with obstore: signs URLs, lists and uploads, for the process that started it.

It reads requests from its standard input, and ends when that ends; uploads that are not complete are then aborted.
SIGTERM ends it, too; it then aborts only the uploads that another such process could not continue. Its standard output
is for answers only.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from fffs.base.interpreter import STARTED
from fffs.objects.answering import Answerer
from fffs.objects.describing import describe
from fffs.objects.protocol import BrokenProtocolError, Message, is_readable, read_message, write_message

THREADS: Final = 16
_LOOK_EVERY: Final = 10.0  # seconds


def main() -> int:
    """Answer requests until the owner closes the pipe or ends. Returns the exit code."""
    os.environ.pop(STARTED, None)
    owner, output = os.getppid(), os.dup(1)
    os.dup2(2, 1)  # nothing that a library prints may come between answers
    send = _Sender(output)
    try:
        obstore = importlib.import_module("obstore")
    except ImportError as error:
        send({"error": "missing", "message": str(error)})
        return 1
    answerer = Answerer()
    send({"ready": getattr(obstore, "__version__", "")})
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            signal.signal(signal.SIGTERM, _terminate)
            _serve(owner, lambda request, payload: pool.submit(_answer, answerer, send, request, payload))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            answerer.abort_uploads()
        except _TerminatedError:
            answerer.stop_spools()
        os._exit(0)  # threads may still wait for stores, for nobody


class _TerminatedError(Exception):
    """SIGTERM came."""


def _terminate(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise _TerminatedError


def _serve(owner: int, take: Callable[[Message, bytes], Any]) -> None:
    """Take requests until the pipe ends.

    The parent is looked at because a process that was forked while the pipe was made holds it open without knowing it.
    """
    while os.getppid() == owner:
        if not is_readable(0, _LOOK_EVERY):
            continue
        try:
            take(*read_message(0))
        except BrokenProtocolError:
            return


class _Sender:
    """Writes one answer at a time."""

    def __init__(self, fd: int) -> None:
        self._fd, self._lock = fd, threading.Lock()

    def __call__(self, message: Message, payload: bytes = b"") -> None:
        with self._lock:
            write_message(self._fd, message, payload)


def _answer(answerer: Answerer, send: _Sender, request: Message, payload: bytes) -> None:
    """Answer a request. Whatever goes wrong is an answer as well."""
    try:
        answer = answerer.answer(request)
    except BaseException as error:  # a panic of Rust is no Exception
        answer = describe(error, str(request.get("scheme")), answerer.secrets)
    with contextlib.suppress(OSError):  # the owner is gone, which the main thread notices
        send({"id": request.get("id"), **answer})
