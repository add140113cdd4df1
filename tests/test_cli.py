"""The command line, in processes of its own, pipes and terminals."""

from __future__ import annotations

import argparse
import errno
import inspect
import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from builders import MAGIC, MIB, as_nobody, contents, record_file, small_disk, snapshot, split_records, stretched
from golden_files import GOLDEN
from inside import parser, program

import fffs
from fffs import errors
from fffs.version import __version__

FFFS = [sys.executable, "-m", "fffs"]
COMMANDS = [
    "pack",
    "unpack",
    "plan",
    "convert",
    "mount",
    "umount",
    "stat",
    "ls",
    "cat",
    "info",
    "verify",
    "cache",
    "doctor",
]


class Result(NamedTuple):
    code: int
    out: bytes
    err: str


def main(args: tuple[str | bytes | Path, ...], stdio: list[int], cwd: Path | None) -> int:
    """Run ``fffs`` in a process that was just forked."""
    for number, fd in enumerate(stdio):
        if fd < 0:
            os.close(number)
        else:
            os.dup2(fd, number)
    streams = [os.fdopen(n, "w", errors="backslashreplace", closefd=False) if stdio[n] >= 0 else None for n in (1, 2)]
    sys.stdout, sys.stderr = streams
    os.chdir(cwd or ".")
    sys.argv = ["fffs", *map(os.fsdecode, args)]
    code: Any = 99
    try:
        program.main()
    except SystemExit as end:
        code = end.code
    for stream in filter(None, streams):
        stream.flush()
    return int(code or 0)


def run(
    *args: str | bytes | Path, cwd: Path | None = None, stdout: int | None = None, stderr: int | None = None
) -> Result:
    """Run ``fffs`` in a fork of this process, which is faster than a new one. A descriptor of -1 is closed."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, open(os.devnull, "rb") as nothing:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the engine's threads survive a fork
            child = os.fork()
        if child == 0:
            try:
                fds = [
                    nothing.fileno(),
                    out.fileno() if stdout is None else stdout,
                    err.fileno() if stderr is None else stderr,
                ]
                os._exit(main(args, fds, cwd))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(99)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (out, err):
            file.seek(0)
        return Result(code, out.read(), err.read().decode(errors="surrogateescape"))


def spawn(*args: str | bytes | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> Result:
    """Run ``fffs`` in a new process."""
    environment = os.environ | (env or {})
    done = subprocess.run([*FFFS, *args], cwd=cwd, env=environment, check=False, capture_output=True)
    return Result(done.returncode, done.stdout, done.stderr.decode(errors="surrogateescape"))


def fails(code: int, *args: str | bytes | Path, **more: Any) -> str:
    """Run a command that must fail with that code, one line on stderr and nothing on stdout. Returns the line."""
    result = run(*args, **more)
    assert (result.code, result.out or b"") == (code, b""), result.err
    assert re.fullmatch(r"fffs: [^\n]+\n", result.err), result.err
    return result.err[6:-1]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "2024" / "july").mkdir(parents=True)
    (folder / "a.jpg").write_bytes(b"picture a")
    (folder / "2024" / "b.jpg").write_bytes(b"picture b\n\0\xff")
    (folder / "2024" / "again.jpg").hardlink_to(folder / "a.jpg")
    (folder / "latest").symlink_to("2024/b.jpg")
    (folder / "year").symlink_to("2024")
    os.close(os.open(os.fsencode(folder) + b"/caf\xe9\n\x1b[31m", os.O_CREAT))
    (folder / "2024" / "b.jpg").chmod(0o600)
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, ns=(1_700_000_000_123_456_789, 1_700_000_000_123_456_789), follow_symlinks=False)
    return folder


@pytest.fixture
def pack(folder: Path) -> Path:
    path = folder.parent / "photos.ffr"
    fffs.pack_folder(folder, path)
    return path


def damage(path: Path, record: int) -> Path:
    """Flip a bit of a record."""
    with fffs.FileReader(path) as reader:
        at = int(reader.get_offsets()[record])
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    return path


# ---------------------------------------------------------------- help and usage


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_shows_an_example(command: str) -> None:
    result = run(command, "--help")
    assert (result.code, result.err) == (0, "")
    assert f"example:\n  fffs {command} ".encode() in result.out


def test_a_local_pack_is_listed_without_what_writes_and_what_urls_need(tmp_path: Path) -> None:
    """They would double the time that a short command takes."""
    (tmp_path / "file").write_bytes(b"x")
    fffs.pack_folder(tmp_path, tmp_path.with_suffix(".ffr"))
    code = (
        "import sys\nfrom fffs.cli.program import run\nassert run(sys.argv[1:]) == 0\n"
        "print([name for name in sys.modules if name.startswith('fffs.')])"
    )
    printed = subprocess.check_output([sys.executable, "-c", code, "ls", tmp_path.with_suffix(".ffr")], text=True)
    imported = printed.split("\n")[1]
    assert printed.startswith("file\n") and "'fffs.layouts.load'" in imported
    for name in ("fffs.files.atomic", "fffs.objects.client", "fffs.objects.remote", "fffs.formats.streams"):
        assert f"'{name}'" not in imported


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_each_command_is_accepted(command: str) -> None:
    (parsers,) = [action for action in parser.make_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert list(parsers.choices) == COMMANDS
    example = parsers.choices[command].epilog.split("\n  fffs ")[1].split(" > ")[0]
    assert parser.make_parser().parse_args(example.split()).command == command


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["pack", "--", "-f", "-o.ffr"], {"folder": "-f", "output": "-o.ffr"}),
        (["pack", "-q", "folder", "--", "--help"], {"folder": "folder", "output": "--help", "quiet": True}),
        (["cache", "prune", "--", "-x", "--all"], {"action": "prune", "name": ["-x", "--all"], "all": False}),
        (["plan", "run", "--task", "3", "--", "--task"], {"action": "run", "task": [3], "target": "--task"}),
        (["unpack", "--", "-x.ffr", "-t"], {"source": "-x.ffr", "target": "-t"}),
        (["convert", "--to", "bag", "--", "-s", "-d"], {"source": ["-s"], "output": "-d", "to": "bag"}),
        (["mount", "--", "-a", "-b", "-m"], {"source": ["-a", "-b"], "mountpoint": "-m", "options": []}),
        (["mount", "-o", "ro", "a", "--", "-m"], {"source": ["a"], "mountpoint": "-m", "options": ["ro"]}),
        (["umount", "--", "-m"], {"mountpoint": "-m", "lazy": False}),
        (["stat", "--json", "--", "--watch"], {"mountpoint": "--watch", "json": True, "watch": False}),
        (["ls", "--", "-x.ffr"], {"source": "-x.ffr", "path": []}),
        (["ls", "x", "-l", "--", "-p", "--"], {"source": "x", "path": ["-p", "--"], "long": True}),
        (["cat", "x", "--", "-p"], {"source": "x", "path": ["-p"]}),
        (["info", "--", "-a", "b"], {"source": ["-a", "b"]}),
        (["verify", "-q", "--"], None),
        (["verify", "a", "--"], {"source": ["a"]}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_follows_two_dashes_is_no_option(words: list[str], found: dict[str, Any] | None) -> None:
    if found is None:
        assert "required" in fails(2, *words)
        return
    args, unknown = parser.make_parser().parse_known_args(words)
    assert unknown == [] and {name: getattr(args, name) for name in found} == found


def test_what_is_too_much_after_two_dashes_is_named(pack: Path) -> None:
    assert fails(2, "umount", "--", "-m", "-n") == "unrecognized arguments: -n (see fffs umount --help)"
    assert "the name is empty" in fails(2, "umount", "--", "")


def test_the_help_lists_commands_and_exit_codes() -> None:
    result = run("--help")
    assert result.code == 0
    for command in COMMANDS:
        assert re.search(rf"^\s+{command}\s+\w".encode(), result.out, re.MULTILINE)
    assert parser.EXIT_CODES.encode() in result.out


def test_the_version_is_told() -> None:
    assert spawn("--version") == (0, f"fffs {__version__}\n".encode(), "")


@pytest.mark.parametrize(
    ("args", "wrong"),
    [
        ([], "COMMAND"),
        (["frobnicate"], "frobnicate"),
        (["pack"], "FOLDER"),
        (["unpack", "x.ffr"], "TARGET"),
        (["ls"], "SOURCE"),
        (["cat", "x.ffr"], "PATH"),
        (["verify"], "SOURCE"),
        (["pack", "x", "--frobnicate"], "--frobnicate"),
        (["pack", "x", "-j", "0"], "'0' is not a number of at least 1"),
        (["pack", "x", "-j", "-1"], "-1"),
        (["unpack", "x", "y", "-j", "many"], "'many' is not a number"),
        (["ls", "x", "--new\nline"], r"--new\nline"),
        (["info", "x", "--format", "zip"], "invalid choice: 'zip' (choose from 'ffrecord', "),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_that_says_what_and_where_to_look(args: list[str], wrong: str) -> None:
    line = fails(2, *args)
    unquoted = wrong.replace("'ffrecord'", "ffrecord")  # as newer versions of argparse show choices
    assert wrong in line or unquoted in line
    known = args[:1] if args and args[0] in COMMANDS else []
    assert line.endswith(f"(see {' '.join(['fffs', *known])} --help)")


# ---------------------------------------------------------------- exit codes


def classes() -> list[type[errors.FffsError]]:
    return [
        kind
        for name, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.FffsError) and not name.startswith("_")
    ]


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_the_tree_in_errors_gives_each_class_its_parents(kind: type[errors.FffsError]) -> None:
    assert errors.__doc__
    tree = errors.__doc__.split("Examples:")[0].splitlines()
    (line,) = [line for line in tree if re.search(rf"(^|[^\w]){kind.__name__}( |$)", line)]
    builtins = re.search(rf"{kind.__name__} \(([\w, ]+)\)", line)
    for parent in builtins[1].split(", ") if builtins else []:
        assert issubclass(kind, getattr(__import__("builtins"), parent))


def test_exit_codes_stay_and_each_has_an_exception_or_none() -> None:
    """Scripts compare exit codes, so they must never change."""
    listed = [int(code) for code in re.findall(r"^ *(\d+)  \w", parser.EXIT_CODES, re.MULTILINE)]
    assert listed == [*range(13), 130]
    assert set(listed) == {kind.exit_code for kind in classes()} | {0, 1, 130}
    codes = {kind.__name__.removesuffix("Error"): int(kind.exit_code) for kind in classes()}
    names = "Usage SourceNotFound Metadata Checksum Read Write SourceChanged RecordIndex DeadMount Engine Worker"
    assert [codes[name] for name in names.split()] == [*range(2, 13)]


def make_error(kind: type[errors.FffsError]) -> errors.FffsError:
    return kind(errno.EIO, "some file") if issubclass(kind, errors._SystemError) else kind("some file: no")


@pytest.mark.parametrize("kind", classes(), ids=lambda kind: kind.__name__)
def test_each_error_ends_a_command_with_its_code_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], kind: type[errors.FffsError]
) -> None:
    def fail(_args: Any) -> int:
        raise make_error(kind)

    monkeypatch.setattr("fffs.cli.commands.info.run", fail)
    assert program.run(["info", "x"]) == kind.exit_code
    assert re.fullmatch("fffs: some file: [^\n]+\n", capsys.readouterr().err)


ALLOW = "allow this user or container more of them (ulimit -u)"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 1, "not enough memory"),
        (MemoryError("x.ffr: not enough memory to read the tree"), 1, "x.ffr: not enough memory to read the tree"),
        (OSError(errno.EMFILE, "Too many"), 6, "Too many; allow this process more of them (ulimit -n)"),
        (OSError(errno.ENFILE, "Too many"), 6, "Too many"),
        (RuntimeError("can't start new thread"), 6, f"the system refuses to start a thread; {ALLOW}"),
        (ZeroDivisionError("a\nb"), 1, r"unexpected ZeroDivisionError: a\nb (a bug: please report it)"),
    ],
    ids=repr,
)
def test_what_is_no_error_of_ours_is_one_line_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    def fail(_args: Any) -> int:
        raise error

    monkeypatch.setattr("fffs.cli.commands.info.run", fail)
    assert program.run(["info", "x"]) == code
    assert capsys.readouterr().err == f"fffs: {line}\n"


def test_real_failures_have_their_codes_and_name_their_file(tmp_path: Path, pack: Path) -> None:
    (tmp_path / "junk.ffr").write_bytes(b"junk" * 100)
    (tmp_path / "zero.ffr").write_bytes(bytes(100))
    (tmp_path / "evil.ffr").write_bytes(record_file([MAGIC + b"cos\nsystem\n."]))
    (tmp_path / "empty").mkdir()
    (tmp_path / "plain.ffr").write_bytes(record_file([b"x"]))
    for code, args in [
        (3, ["ls", "nowhere.ffr"]),
        (3, ["ls", "empty"]),
        (3, ["pack", "nowhere", "x.ffr"]),
        (2, ["pack", "plain.ffr", "x.ffr"]),
        (2, ["pack", "empty", "x.zip"]),
        (4, ["ls", "junk.ffr"]),
        (4, ["info", "zero.ffr"]),
        (4, ["verify", "evil.ffr"]),
        (4, ["ls", "evil.ffr"]),
        (2, ["info", "plain.ffr", "photos.ffr"]),
        (2, ["ls", "/dev/null"]),
        (7, ["pack", "empty", "nowhere/x.ffr"]),
        (7, ["unpack", "photos.ffr", "nowhere/x"]),
        (2, ["unpack", "photos.ffr", "photos"]),
        (9, ["ls", "photos.ffr", "nowhere"]),
        (9, ["cat", "photos.ffr", "nowhere"]),
        (9, ["cat", "photos.ffr", "--record", "99"]),
        (9, ["cat", "photos.ffr", "--record", str(2**70)]),
        (2, ["cat", "photos.ffr", "--record", "first"]),
        (2, ["cat", "photos.ffr", "2024"]),
    ]:
        line = fails(code, *args, cwd=tmp_path)
        assert args[-1] in line or args[1] in line or args[0] == "cat", line
        assert "bug" not in line
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["photos", "photos.ffr", "junk.ffr", "zero.ffr", "evil.ffr", "empty", "plain.ffr"]
    )


@pytest.mark.parametrize("command", [["ls"], ["pack"], ["verify", "--json"]], ids=" ".join)
def test_a_wrong_setting_in_the_environment_is_wrong_usage(pack: Path, command: list[str]) -> None:
    for name, value in {"FFFS_ENGINE": "bogus", "FFFS_THREADS": "-1"}.items():
        result = spawn(*command, pack, env={name: value})
        assert (result.code, result.out) == (2, b"")
        assert re.fullmatch(rf"fffs: {name}[^\n]*'{value}'[^\n]*\n", result.err)


@pytest.mark.parametrize("wanted", [None, "2"])
def test_numpy_starts_no_threads_unless_the_user_wants_them(wanted: str | None, pack: Path) -> None:
    code = """
import os, sys
from fffs.__main__ import main
try:
    main()
finally:
    assert "numpy" in sys.modules
    print(os.environ["OPENBLAS_NUM_THREADS"], len(os.listdir("/proc/self/task")), file=sys.stderr)
"""
    env = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    env |= {"OPENBLAS_NUM_THREADS": wanted} if wanted else {}
    done = subprocess.run([sys.executable, "-c", code, "ls", pack], env=env, capture_output=True, check=True)
    variable, threads = done.stderr.decode().split()
    assert variable == (wanted or "1")
    assert wanted or threads == "1"


def test_what_may_not_be_read_has_its_code(tmp_path: Path, pack: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (room / "closed.ffr").write_bytes(pack.read_bytes())
    (room / "closed").mkdir()
    for name in ("closed", "closed.ffr"):
        (room / name).chmod(0)
    with as_nobody(room):
        for args in (["ls", "closed"], ["ls", "closed.ffr"], ["pack", "closed", "x.ffr"]):
            assert fails(6, *args) == f"{args[1]}: cannot read: Permission denied"


# ---------------------------------------------------------------- names with control characters

EVIL_NAME = "new\nline\x1b[31m\u202e\udcff"
SHOWN = r"new\nline\x1b[31m\u202e\udcff"


def test_errors_name_files_in_one_line_whatever_they_are_called(tmp_path: Path, pack: Path) -> None:
    evil = tmp_path / f"{EVIL_NAME}.ffr"
    for command in ("ls", "info", "verify", "unpack", "cat"):
        more = {"unpack": ["x"], "cat": ["y"]}.get(command, [])
        assert fails(3, command, evil, *more).count(SHOWN) == 1
    evil.write_bytes(b"junk" * 10)
    assert SHOWN in fails(4, "verify", evil)
    for command in ("ls", "cat"):
        assert SHOWN in fails(9, command, pack, EVIL_NAME)
    assert SHOWN in fails(3, "pack", EVIL_NAME, "x.ffr", cwd=tmp_path)


def test_everything_works_on_a_file_with_such_a_name(tmp_path: Path) -> None:
    (tmp_path / EVIL_NAME).mkdir()
    (tmp_path / EVIL_NAME / EVIL_NAME).write_bytes(b"content")
    os.mkfifo(tmp_path / EVIL_NAME / "pipe")
    result = run("pack", EVIL_NAME, cwd=tmp_path)
    assert result.code == 0
    assert result.out.startswith(f"{SHOWN}.ffr: 1 file, 7 B in ".encode())
    assert result.err == f"fffs: warning: {SHOWN}/pipe: a FIFO, left out\n"
    name = f"{EVIL_NAME}.ffr"
    assert f"sources:            {SHOWN}.ffr\n".encode() in run("info", name, cwd=tmp_path).out
    assert json.loads(run("info", "--json", name, cwd=tmp_path).out)["sources"] == [name]
    assert run("verify", name, cwd=tmp_path).code == 0
    assert run("cat", name, EVIL_NAME, cwd=tmp_path) == (0, b"content", "")
    assert run("ls", name, cwd=tmp_path) == (0, os.fsencode(EVIL_NAME) + b"\n", "")
    result = run("unpack", name, f"{EVIL_NAME}.d", cwd=tmp_path)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{SHOWN}.d: 1 files and folders, all verified\n".encode()
    damage(tmp_path / name, 0)
    result = run("verify", name, cwd=tmp_path)
    assert result.code == 5
    assert result.out.count(b"\n") == 1
    assert f"{SHOWN}.ffr: record 0 '{SHOWN}' at offset ".encode() in result.out


@pytest.mark.parametrize("locale", ["POSIX", "C.UTF-8"])
def test_every_locale_will_do(tmp_path: Path, locale: str) -> None:
    (tmp_path / "Fotos aus Ångström 😀").mkdir()
    (tmp_path / "Fotos aus Ångström 😀" / "日本").write_bytes(b"x")
    environment = {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": ""}
    for args in (
        ["pack", "Fotos aus Ångström 😀"],
        ["info", "Fotos aus Ångström 😀.ffr"],
        ["verify", "Fotos aus Ångström 😀.ffr"],
        ["ls", "-l", "Fotos aus Ångström 😀.ffr"],
        ["cat", "Fotos aus Ångström 😀.ffr", "日本"],
        ["unpack", "Fotos aus Ångström 😀.ffr", "Zurück"],
    ):
        result = spawn(*args, cwd=tmp_path, env=environment)
        assert (result.code, result.err) == (0, ""), args
    assert contents(tmp_path / "Zurück") == {"日本".encode(): b"x"}
    assert spawn("ls", "nirgends-ä.ffr", cwd=tmp_path, env=environment).code == 3


# ---------------------------------------------------------------- pack, unpack


def test_pack_writes_here_by_default(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    result = run("pack", "../photos/", cwd=tmp_path / "here")
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(rb"photos\.ffr: 3 files, 21 B in \d+\.\d s \([^)]+/s\)\n", result.out)
    assert os.listdir(tmp_path / "here") == ["photos.ffr"]
    result = run("pack", ".", "--quiet", "-j", "2", cwd=folder)
    assert result == (0, b"", "")
    assert (folder / "photos.ffr").exists()


def test_a_folder_without_a_name_needs_an_output(tmp_path: Path) -> None:
    assert fails(2, "pack", "/", cwd=tmp_path).startswith("/: has no name")
    assert os.listdir(tmp_path) == []


def test_what_is_packed_unpacks(pack: Path, folder: Path) -> None:
    result = run("unpack", pack, "copy", cwd=pack.parent)
    assert result == (0, b"copy: 7 files and folders, all verified\n", "")
    assert snapshot(pack.parent / "copy") == snapshot(folder)
    assert run("unpack", "-q", "-j", "3", pack, "copy2", cwd=pack.parent) == (0, b"", "")


def test_unpacking_says_what_has_no_checksums(tmp_path: Path) -> None:
    with fffs.granular.BagWriter(tmp_path / "two.bag") as bag:
        bag.append(b"one")
        bag.append(b"two")
    result = run("unpack", "two.bag", "copy", cwd=tmp_path)
    assert result == (0, b"copy: 2 files and folders, 2 records without checksums, not verified\n", "")


def test_special_bits_are_left_out_unless_asked_for(folder: Path, tmp_path: Path) -> None:
    (folder / "a.jpg").chmod(0o4755)
    run("pack", folder, "p.ffr", cwd=tmp_path)
    result = run("unpack", "p.ffr", "without", cwd=tmp_path)
    assert result.code == 0
    assert result.err.startswith("fffs: warning: 1 file unpacked without set-user-ID")
    assert run("unpack", "--special-bits", "p.ffr", "with", cwd=tmp_path).err == ""
    assert stat.S_IMODE((tmp_path / "without" / "a.jpg").stat().st_mode) == 0o755
    assert stat.S_IMODE((tmp_path / "with" / "a.jpg").stat().st_mode) == 0o4755


def test_unpacking_a_damaged_pack_leaves_nothing(pack: Path) -> None:
    damage(pack, 1)
    assert "record 1" in fails(5, "unpack", pack, "copy", cwd=pack.parent)
    assert sorted(os.listdir(pack.parent)) == ["photos", "photos.ffr"]


def test_a_full_disk_is_an_error_that_names_the_output(tmp_path: Path, folder: Path) -> None:
    (folder / "large").write_bytes(stretched(2 * MIB))
    with small_disk(tmp_path / "disk", MIB) as disk:
        assert (
            fails(7, "pack", folder, "disk/p.ffr", cwd=tmp_path) == "disk/p.ffr: cannot write: No space left on device"
        )
        assert os.listdir(disk) == []


@pytest.mark.parametrize("command", ["pack", "unpack"])
@pytest.mark.parametrize("jobs", ["1", "4"])
def test_ctrl_c_leaves_nothing_and_says_so_in_one_line(tmp_path: Path, command: str, jobs: str) -> None:
    """The process interrupts itself at the first progress, and repeatedly during its cleanup."""
    (tmp_path / "in").mkdir()
    for i in range(600):
        (tmp_path / "in" / f"{i}").write_bytes(b"x")
    fffs.pack_folder(tmp_path / "in", tmp_path / "in.ffr")
    code = """
        import os, shutil, signal
        from fffs.cli import program
        from fffs.cli.progress import ProgressBar

        def interrupting(function):
            def interrupt(*args, **options):
                os.kill(os.getpid(), signal.SIGINT)
                return function(*args, **options)
            return interrupt

        ProgressBar.__call__ = interrupting(lambda *_: None)
        os.unlink, shutil.rmtree = interrupting(os.unlink), interrupting(shutil.rmtree)
        program.main()
    """
    args = [
        command,
        {"pack": "in", "unpack": "in.ffr"}[command],
        {"pack": "out.ffr", "unpack": "out"}[command],
        "-j",
        jobs,
    ]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *args], cwd=tmp_path, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"fffs: interrupted\n")
    assert sorted(os.listdir(tmp_path)) == ["in", "in.ffr"]


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (signal.SIGINT, 130, b"fffs: interrupted\n"),
        (signal.SIGTERM, 143, b""),
        (signal.SIGHUP, 129, b""),
    ],
)
def test_a_signal_does_not_wait_for_the_end_of_a_large_file_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals, code: int, message: bytes
) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "holes").open("wb") as file:
        file.truncate(1 << 38)  # packing it takes minutes
    # The tests may run with the signal ignored (nohup), which children inherit.
    process = subprocess.Popen(
        [*FFFS, "pack", "in", "out.ffr"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not any(
            name.endswith(".fffs-tmp") and (tmp_path / name).stat().st_blocks > 100 for name in os.listdir(tmp_path)
        ):
            assert process.poll() is None
            assert time.monotonic() < deadline
            os.sched_yield()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (code, message)
    assert os.listdir(tmp_path) == ["in"]


def test_nohup_keeps_working(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_bytes(b"x")
    code = """
        import os, signal
        from fffs.cli import program
        from fffs.cli.progress import ProgressBar
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        ProgressBar.__call__ = lambda *_: os.kill(os.getpid(), signal.SIGHUP)
        program.main()
    """
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), "pack", "-q", "in", "out.ffr"], cwd=tmp_path, check=True
    )
    assert sorted(os.listdir(tmp_path)) == ["in", "out.ffr"]


def test_a_server_that_is_none_of_sftp_is_an_error_of_one_line() -> None:
    """paramiko logs the traceback of what it raises, a line each."""
    code = """
        import logging
        from fffs.cli import program

        def fail():
            for line in ("Exception (client): Error reading SSH protocol banner", "Traceback (most recent call last):"):
                logging.getLogger("paramiko.transport").error(line)

        program.main(imported=fail)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), "ls"], capture_output=True, check=False)
    assert b"Traceback" not in done.stderr
    assert b"banner" not in done.stderr
    assert done.returncode == 2


# ---------------------------------------------------------------- ls


def test_ls_lists_a_folder_by_the_bytes_of_its_names(pack: Path) -> None:
    assert run("ls", pack) == (0, b"2024\na.jpg\ncaf\xe9\n\x1b[31m\nlatest\nyear\n", "")
    assert run("ls", pack, "2024") == (0, b"again.jpg\nb.jpg\njuly\n", "")
    assert run("ls", pack, "2024/") == (0, b"again.jpg\nb.jpg\njuly\n", "")
    assert run("ls", pack, "2024/july") == (0, b"", "")
    assert run("ls", pack, "a.jpg") == (0, b"a.jpg\n", "")


def test_ls_follows_links_to_folders(pack: Path) -> None:
    assert run("ls", pack, "year") == (0, b"again.jpg\nb.jpg\njuly\n", "")
    assert run("ls", pack, "year/b.jpg") == (0, b"year/b.jpg\n", "")
    assert run("ls", pack, "latest") == (0, b"latest\n", "")


def test_ls_of_several_folders_has_headings(pack: Path) -> None:
    assert run("ls", pack, "2024", "a.jpg", "2024/july") == (
        0,
        b"2024:\nagain.jpg\nb.jpg\njuly\na.jpg\n\n2024/july:\n",
        "",
    )


def test_ls_recursive_lists_paths_in_preorder(pack: Path) -> None:
    out = run("ls", "-R", pack).out
    assert out == b"2024\n2024/again.jpg\n2024/b.jpg\n2024/july\na.jpg\ncaf\xe9\n\x1b[31m\nlatest\nyear\n"


def test_ls_long_shows_what_ls_does(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    lines = run("ls", "-l", pack, "2024").out.splitlines()
    assert lines == [
        b"-rw-r--r--   2            9 2023-11-14 22:13 again.jpg",
        b"-rw-------   1           12 2023-11-14 22:13 b.jpg",
        b"drwxr-xr-x   2            0 2023-11-14 22:13 july",
    ]
    assert run("ls", "-l", pack, "year/b.jpg", "latest").out.splitlines()[-1].endswith(b" latest -> 2024/b.jpg")


@pytest.mark.parametrize("mtime", [-(2**63), -1, 0, 2**63 - 1])
def test_ls_long_shows_any_time(tmp_path: Path, mtime: int) -> None:
    from builders import Pack

    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "file").touch()
    fffs.pack_folder(tmp_path / "f", tmp_path / "p.ffr")
    parts = Pack.parse((tmp_path / "p.ffr").read_bytes())
    assert parts.trailer
    parts.trailer.arrays["mtime"][:] = mtime
    (tmp_path / "p.ffr").write_bytes(parts.build())
    result = run("ls", "-l", tmp_path / "p.ffr")
    assert (result.code, result.err) == (0, "")
    assert re.search(rb" (1677|1969|1970|2262)-\d\d-\d\d \d\d:\d\d file\n", result.out)


def test_ls_json_tells_all(pack: Path, folder: Path) -> None:
    listed = json.loads(run("ls", "--json", "-R", pack).out)
    expected = snapshot(folder)
    assert [os.fsencode(entry["path"]) for entry in listed] == sorted(
        (path for path in expected if path), key=lambda path: path.split(b"/")
    )
    for entry in listed:
        mode, mtime, content, names = expected[os.fsencode(entry["path"])]
        assert int(entry["mode"], 8) == int(mode, 8) & 0o7777
        assert entry["mtime_ns"] == mtime
        assert entry["type"] == {0o4: "dir", 0o10: "file", 0o12: "link"}[int(mode, 8) >> 12]
        if entry["type"] == "file":
            assert (entry["size"], entry["nlink"]) == (len(content), len(names))
            assert (entry["source"], split_records(pack.read_bytes())[entry["record"]]) == (str(pack), content)
            assert re.fullmatch("[0-9a-f]{8}", entry["crc32"])
        if entry["type"] == "link":
            assert os.fsencode(entry["target"]) == content


def test_ls_json_gives_paths_that_can_be_asked_for_again(pack: Path) -> None:
    for path in ("2024", "./2024//", "year"):
        listed = json.loads(run("ls", "--json", pack, path).out)
        prefix = "year" if path == "year" else "2024"
        assert [entry["path"] for entry in listed] == [f"{prefix}/again.jpg", f"{prefix}/b.jpg", f"{prefix}/july"]
        assert bytes(run("cat", pack, listed[0]["path"]).out) == b"picture a"
    assert [entry["path"] for entry in json.loads(run("ls", "--json", pack, "2024/b.jpg").out)] == ["2024/b.jpg"]
    assert json.loads(run("ls", "--json", pack, "2024/july").out) == []


def test_ls_json_of_a_path_that_is_not_there_prints_nothing(pack: Path) -> None:
    fails(9, "ls", "--json", pack, "2024", "nowhere")


def test_ls_of_plain_records_lists_numbers(tmp_path: Path) -> None:
    (tmp_path / "plain.ffr").write_bytes(record_file([b"a", b"bb"]))
    assert run("ls", tmp_path / "plain.ffr") == (0, b"000000\n000001\n", "")
    (entry, _) = json.loads(run("ls", "--json", tmp_path).out)
    assert (entry["path"], entry["record"], entry["size"], entry["crc32"]) == ("000000", 0, 1, "e8b7be43")


def test_names_that_an_earlier_pack_hides_are_warned_about(pack: Path, tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for k in range(2):
        (tmp_path / "parts" / f"{k}.ffr").write_bytes(pack.read_bytes())
    result = run("ls", tmp_path / "parts")
    assert result.code == 0
    assert result.err.count("\n") == 6
    assert f"fffs: warning: a.jpg: also in {tmp_path}/parts/1.ffr, which is hidden\n" in result.err


def test_of_many_hidden_names_the_first_are_named_and_the_others_counted(tmp_path: Path) -> None:
    for k in range(15):
        (tmp_path / "folder" / "inner").mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / "inner" / f"{k:02}").write_bytes(b"x")
    fffs.pack_folder(tmp_path / "folder", tmp_path / "a.ffr")
    fffs.pack_folder(tmp_path / "folder", tmp_path / "b.ffr")
    lines = run("ls", tmp_path).err.splitlines()
    assert lines[:-1] == [f"fffs: warning: inner/{k:02}: also in {tmp_path}/b.ffr, which is hidden" for k in range(9)]
    assert lines[-1] == "fffs: warning: ... and 6 more names that earlier sources hide"


# ---------------------------------------------------------------- cat


def test_cat_writes_exact_bytes(pack: Path) -> None:
    assert run("cat", pack, "2024/b.jpg") == (0, b"picture b\n\0\xff", "")
    assert run("cat", pack, "a.jpg", "latest", "year/again.jpg").out == b"picture apicture b\n\0\xffpicture a"
    assert (
        run("cat", pack, "--record", "0", "-3").out
        == b"picture a" * 0 + split_records(pack.read_bytes())[0] + (split_records(pack.read_bytes())[-3])
    )


def test_cat_writes_large_files_whole(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    data = stretched(9 * MIB + 1)
    (tmp_path / "f" / "large").write_bytes(data)
    fffs.pack_folder(tmp_path / "f", tmp_path / "p.ffr")
    assert run("cat", tmp_path / "p.ffr", "large").out == data


@pytest.mark.parametrize("size", [1, 1000, MIB, MIB + 1, 9 * MIB + 1])
@pytest.mark.parametrize("with_blocks", [True, False])
def test_cat_writes_nothing_of_a_bad_record(tmp_path: Path, size: int, with_blocks: bool) -> None:
    """This also holds if its first blocks have checksums of their own and are good."""
    path = tmp_path / "p.ffr"
    if with_blocks:
        (tmp_path / "f").mkdir()
        (tmp_path / "f" / "file").write_bytes(stretched(size))
        fffs.pack_folder(tmp_path / "f", path)
    else:
        path.write_bytes(record_file([stretched(size)]))
    data = bytearray(path.read_bytes())
    data[12 + 12 * (1 + with_blocks) + size - 1] ^= 1
    path.write_bytes(data)
    assert "record 0" in fails(5, "cat", path, "--record", "0")


def test_cat_checks_all_paths_before_it_writes(pack: Path) -> None:
    fails(9, "cat", pack, "a.jpg", "nowhere")


def test_what_is_not_there_is_said_with_the_name_of_the_pack(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "dangling").symlink_to("nowhere")
    path = tmp_path / "p.ffr"
    fffs.pack_folder(tmp_path / "f", path)
    for command in ("ls", "cat"):
        message = fails(9, command, path, "nowhere")
        assert "'nowhere': no such file" in message and message.endswith(f" in {path}")
    assert f"'dangling': a dangling symbolic link in {path}" in fails(9, "cat", path, "dangling")
    assert str(path) in fails(9, "cat", path, "--record", "5")


# ---------------------------------------------------------------- info, verify


def test_info_says_what_a_source_is(pack: Path, tmp_path: Path) -> None:
    facts = json.loads(run("info", "--json", pack).out)
    assert facts == {
        "sources": [str(pack)],
        "format": "FFRecord",
        "layout": "packed folder",
        "records": 4,
        "size_bytes": pack.stat().st_size,
        "checksums": "CRC-32 per record",
        "engine": facts["engine"],
        "files": 3,
        "folders": 2,
        "symbolic_links": 2,
        "modes_and_times": True,
        "aligned": False,
        "block_checksums": 0,
    }
    lines = run("info", pack).out.decode().splitlines()
    assert [line.split(":")[0].replace(" ", "_") for line in lines] == list(facts)
    assert "layout:             packed folder" in lines
    (tmp_path / "plain.ffr").write_bytes(record_file([b"first", b"second"])[:-8])
    facts = json.loads(run("info", "--json", tmp_path / "plain.ffr").out)
    assert (facts["layout"], facts["records"], facts["truncated"]) == ("record file", 2, True)
    for command in ("info", "ls"):
        said = run(command, tmp_path / "plain.ffr").err
        assert "plain.ffr: the file is truncated: only 0 of 2 records" in said
        assert "if it was a packed folder, its names are lost" in said
    (tmp_path / "plain.ffr").write_bytes(record_file([b"first", b"second", b"third", b""])[:-6])
    assert "only 1 of 4 records can be read" in run("ls", tmp_path / "plain.ffr").err
    assert not json.loads(run("info", "--json", GOLDEN.path("packed/tree.ffr")).out)["modes_and_times"]


def test_verify_of_good_files_says_so(pack: Path) -> None:
    result = run("verify", pack)
    assert (result.code, result.err) == (0, "")
    assert re.fullmatch(rb"ok: 4 records, [\d.]+ K?B in \d+\.\d s \([^)]+/s\)\n", result.out)
    assert run("verify", "-q", pack) == (0, b"", "")
    facts = {"records": 4, "bytes": pack.stat().st_size, "unverifiable": 0, "bad": []}
    assert json.loads(run("verify", "--json", pack).out) == facts


def test_verify_names_each_bad_record_by_number_name_and_offset(pack: Path) -> None:
    with fffs.FileReader(pack) as reader:
        offsets = reader.get_offsets()
    damage(pack, 0)
    damage(pack, 1)
    result = run("verify", pack)
    assert result.code == 5
    lines = result.out.decode().splitlines()
    assert len(lines) == 2
    for record, name in enumerate(["2024/again.jpg", "2024/b.jpg"]):
        assert lines[record].startswith(
            f"{pack}: record {record} '{name}' at offset {offsets[record]}: checksum mismatch"
        )
    assert result.err == "fffs: 2 of 4 records are bad; copy the file again, or restore it from a backup\n"
    result = run("verify", "--json", pack)
    assert result.code == 5
    (first, second) = json.loads(result.out)["bad"]
    assert (first["source"], first["record"], first["number"], first["name"]) == (str(pack), 0, 0, "2024/again.jpg")
    assert (second["offset"], second["name"]) == (offsets[1], "2024/b.jpg")


def test_verify_of_a_damaged_tree_checks_the_other_records_too(pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[-100] ^= 1
    pack.write_bytes(data)
    damage(pack, 1)
    result = run("verify", pack)
    assert result.code == 5
    assert [line.split(" at offset")[0] for line in result.out.decode().splitlines()] == [
        f"{pack}: record 1",
        f"{pack}: record 3",
    ]


def test_a_legacy_file_is_warned_about_in_one_line(pack: Path) -> None:
    result = spawn("info", GOLDEN.path("legacy-zero-crc.ffr"))
    assert result.code == 0
    assert re.fullmatch(r"fffs: warning: [^\n]*legacy-zero-crc\.ffr: the metadata has no checksum[^\n]*\n", result.err)


# ---------------------------------------------------------------- pipes and terminals


@pytest.fixture
def long_listing(tmp_path: Path) -> Path:
    path = tmp_path / "plain.ffr"
    path.write_bytes(record_file([b"x"] * 50_000))
    return path


@pytest.mark.parametrize("args", [["ls"], ["ls", "-l"], ["ls", "--json"]], ids=" ".join)
def test_a_closed_pipe_ends_a_command_silently(long_listing: Path, args: list[str]) -> None:
    process = subprocess.Popen([*FFFS, *args, long_listing], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout
    assert process.stdout.read(7) != b""
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == -signal.SIGPIPE


@pytest.mark.parametrize(
    "args", [["ls"], ["info"], ["verify"], ["ls", "--json"], ["cat", "--record", "0"]], ids=" ".join
)
def test_an_output_that_cannot_be_written_is_an_error(long_listing: Path, args: list[str]) -> None:
    args = [args[0], str(long_listing), *args[1:]]
    with open("/dev/full", "wb") as full:
        line = fails(7, *args, stdout=full.fileno())
    assert line == "standard output: cannot write: No space left on device"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", [["--help"], ["--version"], ["ls", "--help"]], ids=" ".join)
def test_help_that_cannot_be_written_is_an_error(
    args: list[str], unbuffered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONUNBUFFERED", unbuffered)
    with open("/dev/full", "wb") as full:
        line = fails(7, *args, stdout=full.fileno())
    assert line == "standard output: cannot write: No space left on device"


def test_a_closed_output_is_as_dev_null(long_listing: Path, folder: Path, tmp_path: Path) -> None:
    for args in (["ls", long_listing], ["ls", "--help"], ["--version"], ["pack", folder, tmp_path / "p.ffr"]):
        assert run(*args, stdout=-1) == (0, b"", "")
    assert fffs.PackedFolder(tmp_path / "p.ffr").read("a.jpg").tobytes() == b"picture a"


def test_a_closed_stderr_changes_nothing(pack: Path) -> None:
    for args, code in ((["ls", str(pack)], 0), (["ls", "nowhere"], 3), (["verify", str(pack)], 0)):
        result = run(*args, stderr=-1)
        assert result.code == code
        assert (result.out != b"") == (code == 0)


def test_an_stderr_that_cannot_be_written_changes_no_exit_code(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        for args, code in ((["ls", "nowhere"], 3), (["ls", "--frobnicate"], 2)):
            assert subprocess.run([*FFFS, *args], cwd=tmp_path, stderr=full, check=False).returncode == code


def in_terminal(*args: str | Path, cwd: Path | None = None, slow: str = "") -> tuple[int, str]:
    """Run ``fffs`` in a terminal. Returns its exit code and output. ``slow``: Python code that runs first."""
    code = f"from fffs.cli import program, progress\n{slow}\nprogram.main()"
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args], cwd=cwd, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    shown = b""
    while True:
        ready, _, _ = select.select([master], [], [], 60)
        assert ready, "nothing was shown for a minute"
        try:
            data = os.read(master, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        shown += data
    os.close(master)
    return process.wait(), shown.decode(errors="surrogateescape").replace("\r\n", "\n")


EVERY_TIME = "progress.INTERVAL = 0"


def test_a_terminal_is_shown_progress_which_is_erased_in_the_end(folder: Path, tmp_path: Path) -> None:
    code, shown = in_terminal("pack", "photos", "p.ffr", cwd=tmp_path, slow=EVERY_TIME)
    assert code == 0
    assert re.search(r"\r\x1b\[Kpacking photos \[#+ *\] +\d+% ", shown)
    assert re.search(r"\r\x1b\[Kp\.ffr: 3 files, 21 B in [^\n]*\n$", shown)
    code, shown = in_terminal("pack", "--parts", "2", "photos", "set", cwd=tmp_path, slow=EVERY_TIME)
    assert code == 0
    assert re.search(r"\r\x1b\[Kpacking photos \[#+ *\] 1/2 parts +\d+% ", shown)
    assert "verifying p.ffr" in in_terminal("verify", "p.ffr", cwd=tmp_path, slow=EVERY_TIME)[1]
    assert "unpacking p.ffr" in in_terminal("unpack", "p.ffr", "copy", cwd=tmp_path, slow=EVERY_TIME)[1]


def test_progress_fits_into_a_narrow_terminal(folder: Path, tmp_path: Path) -> None:
    narrow = f"{EVERY_TIME}\nimport os; os.environ['COLUMNS'] = '24'"
    code, shown = in_terminal("pack", "photos", "p.ffr", cwd=tmp_path, slow=narrow)
    lines = re.findall(r"\r\x1b\[K(packing [^\r]*)", shown)
    assert code == 0 and lines and max(map(len, lines)) == 23


def test_short_work_shows_no_progress(folder: Path, tmp_path: Path) -> None:
    code, shown = in_terminal("pack", "photos", "p.ffr", cwd=tmp_path, slow="progress.INTERVAL = 1000")
    assert (code, "packing" in shown) == (0, False)


def test_no_progress_goes_into_a_pipe(folder: Path, tmp_path: Path) -> None:
    code = f"from fffs.cli import program, progress\n{EVERY_TIME}\nprogram.main()"
    command = [sys.executable, "-c", code, "pack", "-q", "photos", "p.ffr"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_names_are_quoted_for_a_terminal_and_unchanged_for_a_pipe(tmp_path: Path) -> None:
    """A shell reads the quoted names as they are."""
    names = [
        b"a\nb",
        b"a\\nb",
        b"it's",
        b"with space",
        b"\xff\xfe",
        b"\x1b[1mred",
        "straße".encode(),
        b"-n",
        b"$x",
        b"plain",
    ]
    (tmp_path / "folder").mkdir()
    for name in names:
        (tmp_path / "folder" / os.fsdecode(name)).touch()
    fffs.pack_folder(tmp_path / "folder", tmp_path / "p.ffr")
    code, shown = in_terminal("ls", "p.ffr", cwd=tmp_path)
    lines = shown.splitlines()
    assert code == 0 and len(lines) == len(names) and {"plain", "straße", "'a'$'\\n''b'"} <= set(lines)
    read = subprocess.check_output(["bash", "-c", f"printf '%s\\0' {' '.join(lines)}"])
    assert read.split(b"\0")[:-1] == sorted(names)
    piped = subprocess.check_output([sys.executable, "-m", "fffs", "ls", tmp_path / "p.ffr"])
    assert piped == b"".join(name + b"\n" for name in sorted(names))


def test_a_long_name_leaves_room_for_the_bar_and_cannot_command_the_terminal(tmp_path: Path) -> None:
    name = "x\x1b[31m" + "y" * 200
    (tmp_path / name).mkdir()
    (tmp_path / name / "file").write_bytes(b"x")
    _, shown = in_terminal("pack", name, "p.ffr", cwd=tmp_path, slow=EVERY_TIME)
    assert "\x1b[31m" not in shown
    assert re.search(r"packing x\\x1b\[31my+… \[#", shown)


def test_a_message_does_not_stand_behind_a_bar(folder: Path, tmp_path: Path) -> None:
    (folder / "a.jpg").chmod(0o4755)
    run("pack", "photos", "p.ffr", cwd=tmp_path)
    _, shown = in_terminal("unpack", "p.ffr", "copy", cwd=tmp_path, slow=EVERY_TIME)
    assert "unpacking p.ffr" in shown
    assert "\r\x1b[Kfffs: warning: 1 file unpacked without" in shown


def test_ctrl_c_before_a_bar_is_drawn_does_not_stop_it_from_being_erased() -> None:
    """It may come when the bar has locked itself, and has not begun to draw."""
    program = """
        from fffs.cli import progress

        class Interrupted:
            def acquire(self, blocking):
                lock.acquire(blocking)
                raise KeyboardInterrupt

        progress.INTERVAL = 0
        bar = progress.ProgressBar("x")
        bar._shown, lock = True, bar._lock
        bar._lock = Interrupted()
        try:
            bar(1, 2)
        except KeyboardInterrupt:
            bar._lock = lock
            bar.close()
            print("closed")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("closed\n", "")


def test_work_goes_on_when_its_terminal_is_closed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "holes").open("wb") as file:
        file.truncate(1 << 29)
    code = (
        "import signal\n"
        "from fffs.cli import program, progress\n"
        "real, closed = progress.ProgressBar._draw, open('closed', 'rb')\n"
        "def draw(*args): real(*args), closed.read()\n"  # goes on when the terminal is closed
        "progress.ProgressBar._draw, progress.INTERVAL = draw, 0\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "program.main()"
    )
    os.mkfifo(tmp_path / "closed")
    process, master = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "-c", code, "pack", "-q", "in", "out.ffr"])
    with (tmp_path / "closed").open("wb"):
        assert select.select([master], [], [], 60)[0]
        while b"packing in [" not in os.read(master, 65536):
            pass
        os.close(master)
    _, status = os.waitpid(process, 0)
    assert (os.waitstatus_to_exitcode(status), sorted(os.listdir(tmp_path))) == (0, ["closed", "in", "out.ffr"])


def test_ls_in_a_terminal_shows_names_that_cannot_command_it(pack: Path) -> None:
    code, shown = in_terminal("ls", pack)
    assert (code, shown) == (0, "2024\na.jpg\n'caf'$'\\351\\n\\033''[31m'\nlatest\nyear\n")
    assert "'caf'$'\\351\\n\\033''[31m'\n" in in_terminal("ls", "-lR", pack)[1]


@pytest.fixture
def interrupted_in_terminal(tmp_path: Path) -> Iterator[tuple[int, bytes, Path]]:
    """Type Ctrl-C in a terminal during a long packing. Yields the exit code, the output and the folder."""
    (tmp_path / "in").mkdir()
    with (tmp_path / "in" / "holes").open("wb") as file:
        file.truncate(1 << 38)
    process, master = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execv(sys.executable, [*FFFS, "pack", "in", "out.ffr"])
    shown = b""
    while b"packing in [" not in shown:
        assert select.select([master], [], [], 60)[0]
        shown += os.read(master, 65536)
    os.write(master, b"\x03")
    while select.select([master], [], [], 60)[0]:
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data
    _, status = os.waitpid(process, 0)
    os.close(master)
    yield os.waitstatus_to_exitcode(status), shown, tmp_path


def test_ctrl_c_in_a_terminal_leaves_nothing(interrupted_in_terminal: tuple[int, bytes, Path]) -> None:
    code, shown, room = interrupted_in_terminal
    assert code == 130
    assert shown.endswith(b"fffs: interrupted\r\n")
    assert os.listdir(room) == ["in"]


def test_options_may_stand_between_arguments(tmp_path: Path) -> None:
    (tmp_path / "f/sub").mkdir(parents=True)
    (tmp_path / "f/sub/a").write_bytes(b"a")
    assert run("pack", tmp_path / "f", "-q", tmp_path / "x.ffr").code == 0
    result = run("ls", tmp_path / "x.ffr", "-l", "sub")
    assert (result.code, result.err) == (0, "") and result.out.endswith(b" a\n")
    for arguments, problem in (
        (("ls",), "required: SOURCE ("),
        (("ls", tmp_path / "x.ffr", "--nonsense", "sub"), "unrecognized arguments: --nonsense ("),
        (("pack", "a", "b", "c"), "unrecognized arguments: c ("),
    ):
        result = run(*arguments)
        assert result.code == errors.UsageError.exit_code and problem in result.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("pack", ""),
        ("pack", "f", ""),
        ("unpack", "x.ffr", ""),
        ("convert", "", "x.ffr"),
        ("convert", "x.ffr", ""),
        ("mount", "x.ffr", ""),
        ("umount", ""),
        ("stat", ""),
        ("ls", ""),
        ("ls", "x.ffr", ""),
        ("cat", "x.ffr", ""),
        ("verify", "x.ffr", ""),
    ],
    ids=" ".join,
)
def test_an_empty_name_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """``fffs unpack photos.ffr "$TARGET"`` with an empty TARGET means neither the current folder nor /."""
    (tmp_path / "f").mkdir()
    monkeypatch.chdir(tmp_path)
    assert run("pack", "f", "x.ffr", "-q").code == 0
    result = run(*arguments)
    assert result.code == errors.UsageError.exit_code and "the name is empty" in result.err
    assert sorted(os.listdir()) == ["f", "x.ffr"]


def test_a_damaged_file_is_named_by_unpack_and_left_out_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "f" / name).write_bytes(name.encode() * 20)
    assert run("pack", tmp_path / "f", tmp_path / "x.ffr", "-q").code == 0
    data = (tmp_path / "x.ffr").read_bytes()
    (tmp_path / "x.ffr").write_bytes(data.replace(b"b" * 20, b"B" * 20))
    result = run("unpack", tmp_path / "x.ffr", tmp_path / "all")
    assert result.code == errors.RecordError.exit_code
    assert result.err.endswith(" (file 'b'); nothing was unpacked (--keep-going unpacks the undamaged files)\n")
    result = run("unpack", "/proc/self/mem", tmp_path / "all")
    assert result.code == errors.ReadError.exit_code and "--keep-going" not in result.err
    result = run("unpack", "--keep-going", tmp_path / "x.ffr", tmp_path / "some")
    assert result.code == errors.RecordError.exit_code and result.out == b""
    assert f"{tmp_path}/some/b: left out: {tmp_path}/x.ffr: record 1" in result.err
    assert result.err.endswith(
        f"{tmp_path}/some: 1 file left out; copy {tmp_path}/x.ffr again, or restore it from a backup\n"
    )
    assert sorted(os.listdir(tmp_path / "some")) == ["a", "c"]


def flip(path: Path, position: int) -> None:
    """Damage one byte."""
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("place", [-2000, -70], ids=["in the tree", "near its end"])
def test_files_are_unpacked_without_names_if_the_tree_is_damaged(place: int, tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    for number in range(60):
        (tmp_path / "f" / f"name{number:02}").write_bytes(b"%d" % number * 20)
    pack, target = tmp_path / "x.ffr", tmp_path / "some"
    assert run("pack", tmp_path / "f", pack, "-q").code == 0
    flip(pack, pack.stat().st_size + place)
    result = run("unpack", pack, target)
    assert result.code == errors.MetadataError.exit_code and result.err.endswith("numbered files (--keep-going)\n")
    assert not target.exists()
    result = run("unpack", "--keep-going", pack, target)
    assert result.code == errors.RecordError.exit_code and "its records are unpacked as numbered files" in result.err
    assert sorted(os.listdir(target)) == [f"{number:06}" for number in range(60)]
    assert (target / "000007").read_bytes() == b"7" * 20


def test_a_damaged_header_is_refused_whatever_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "x.ffr").write_bytes(record_file([b"a", b"b"]))
    flip(tmp_path / "x.ffr", 20)
    result = run("unpack", "--keep-going", tmp_path / "x.ffr", tmp_path / "some")
    assert result.code == errors.MetadataError.exit_code and "numbered" not in result.err


def test_verify_ends_its_list_of_what_is_bad(tmp_path: Path) -> None:
    with fffs.FileWriter(tmp_path / "x.ffr", 300) as writer:
        for number in range(300):
            writer.write_one(b"%03d" % number)
    data = (tmp_path / "x.ffr").read_bytes()
    (tmp_path / "x.ffr").write_bytes(data[:-450])
    lines = run("verify", tmp_path / "x.ffr").out.splitlines()
    assert len(lines) == 101 and lines[-1] == b"... and 50 more (--json lists all)"
    assert len(json.loads(run("verify", tmp_path / "x.ffr", "--json").out)["bad"]) == 150


def test_unpack_names_twenty_files_that_it_leaves_out_and_counts_the_others(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for k in range(30):
        (tmp_path / "in" / f"{k:02}").write_bytes(b"%02d" % k * 100)
    fffs.pack_folder(tmp_path / "in", tmp_path / "x.ffr")
    data = (tmp_path / "x.ffr").read_bytes()
    for k in range(25):
        data = data.replace(b"%02d" % k * 100, b"%02d" % k * 99 + b"XX", 1)
    (tmp_path / "x.ffr").write_bytes(data)
    result = run("unpack", "--keep-going", tmp_path / "x.ffr", tmp_path / "out")
    lines = result.err.splitlines()
    assert result.code == errors.ChecksumError.exit_code
    assert len([line for line in lines if ": left out: " in line]) == 20
    assert lines[20:] == [
        "fffs: ... and 5 more files left out (fffs verify --json lists all bad records)",
        f"fffs: {tmp_path / 'out'}: 25 files left out; copy {tmp_path / 'x.ffr'} again, or restore it from a backup",
    ]
    assert len(os.listdir(tmp_path / "out")) == 5
