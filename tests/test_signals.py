"""Signals as bytes in a pipe: a daemon receives them, and they have no other effect."""

from __future__ import annotations

import errno
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from golden_files import FOLDER
from inside import lib

import fffs

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


# Sends the signal while the last module that the command needs is imported.
INTERRUPTED = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "fffs.cli.{module}":
            os.kill(os.getpid(), {number})
            sys.meta_path.remove(self)

sys.meta_path.insert(0, Finder())
signal.signal(signal.SIGINT, {handler})
sys.argv = ["fffs", *{arguments}]
if {helper}:
    from fffs.__main__ import main_mount_helper
    main_mount_helper()
runpy.run_module("fffs", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    ("module", "arguments", "helper"),
    [("parser", ["ls", "x"], False), ("commands.ls", ["ls", "x"], False), ("commands.mount", ["x", "mnt"], True)],
)
def test_an_interrupt_during_imports_is_one_line(module: str, arguments: list[str], helper: bool) -> None:
    options = {"module": module, "arguments": arguments, "helper": helper, "number": 2}
    code = INTERRUPTED.format(handler="signal.default_int_handler", **options)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "fffs: interrupted\n")


def test_an_interrupt_that_is_ignored_ends_no_import() -> None:
    options = {"module": "parser", "arguments": ["--version"], "helper": False, "number": 2}
    code = INTERRUPTED.format(handler="signal.SIG_IGN", **options)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_after_the_imports_cleans_up() -> None:
    """It raises KeyboardInterrupt again."""
    code = """
import os, signal, sys
import fffs.cli.commands.ls
signal.signal(signal.SIGINT, signal.default_int_handler)

def run(args):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        print("cleaned up", flush=True)

fffs.cli.commands.ls.run = run
sys.argv = ["fffs", "ls", "x"]
from fffs.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "cleaned up\n", "fffs: interrupted\n")


@pytest.mark.fuse
def test_an_interrupt_during_the_imports_of_a_daemon_shows_no_traceback(tmp_path: Path) -> None:
    """A terminal sends it to the daemon, too, which blocks it until its imports are done."""
    fffs.pack_folder(tmp_path, tmp_path / "x.ffr")
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "sitecustomize.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    code = "import fffs.mount, sys; sys.path.insert(0, sys.argv.pop()); fffs.mount.mount(*sys.argv[1:])"
    command = [sys.executable, "-c", code, tmp_path / "x.ffr", tmp_path / "mnt", tmp_path / "modules"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "mnt: not mounted: the daemon ended with exit code 130 before it was ready" in done.stderr
    assert done.stderr.count("KeyboardInterrupt") == 0


@pytest.mark.parametrize(("at", "code", "text"), [("run", 130, b"fffs: interrupted\n"), ("put", -2, b"")])
def test_an_interrupt_after_the_command_is_no_traceback(at: str, code: int, text: bytes) -> None:
    """The last line of a command has been reached, or only what is in a buffer is left to be written."""
    program = f"""
        import os, signal
        from fffs.cli import program

        signal.signal(signal.SIGINT, signal.default_int_handler)
        usual = program.{at}

        def interrupted(*arguments, **options):
            result = usual(*arguments, **options)
            if {at!r} == "run" or signal.getsignal(signal.SIGINT) != signal.default_int_handler:
                os.kill(os.getpid(), signal.SIGINT)
            return result

        program.{at} = interrupted
        program.main()
    """
    command = [sys.executable, "-c", textwrap.dedent(program), "ls", str(FOLDER / "tiny-5000.ffr")]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (code, text)
    assert done.stdout.count(b"\n") == 5000
