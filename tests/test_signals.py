"""Signals as bytes in a pipe: a daemon receives them, and they have no other effect."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest
from inside import lib

# Runs in a process of its own, because signals stay blocked. {body} uses `ours`, the read end of the pipe.
PROGRAM = """
import os, signal, sys
from fffs.native import lib

ours, its = os.pipe2(os.O_NONBLOCK)
assert lib.fffs_signals_to(its, [signal.SIGTERM, signal.SIGHUP], 2) == 0
{body}
"""


def run(body: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(body=body)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_each_signal_is_a_byte() -> None:
    done = run("os.kill(os.getpid(), 15); os.kill(os.getpid(), 1); print(list(os.read(ours, 9)))")
    assert (done.stdout, done.stderr, done.returncode) == ("[15, 1]\n", "", 0)


def test_a_full_pipe_keeps_the_program_running() -> None:
    done = run("for _ in range(70_000): os.kill(os.getpid(), 15)\nprint(set(os.read(ours, 1 << 20)))")
    assert (done.stdout, done.stderr, done.returncode) == ("{15}\n", "", 0)


def test_other_signals_are_left_alone() -> None:
    assert run("os.kill(os.getpid(), signal.SIGUSR1)").returncode == -10


@pytest.mark.parametrize("number", [9, 0, -1, 1000])
def test_what_cannot_be_heard_is_an_error(number: int) -> None:
    assert lib.fffs_signals_to(-1, [number], 1) == -errno.EINVAL


def test_a_signal_before_the_event_loop_listens_is_heard_and_runs_no_python_code() -> None:
    """In such code the next signal could be handled, and so on, beyond the recursion limit."""
    body = """
import trio
from fffs.mount.daemon.signals import SignalPipe
pipe = SignalPipe()
signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT))  # as trio does
called = []
sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
os.kill(os.getpid(), signal.SIGINT)
sys.setprofile(None)
assert called == [], called
assert trio.run(pipe.get) == signal.SIGINT
os.kill(os.getpid(), signal.SIGTERM)
assert trio.run(pipe.get) == signal.SIGTERM
"""
    done = run(body)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)
