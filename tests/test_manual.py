"""The man pages and completions in share/ know every command, and the programs that read them accept them."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import ROOT
from inside import parser

SHARE = ROOT / "share"
PAGES = sorted(SHARE.glob("man/man*/*"))
BASH, ZSH, FISH = "bash-completion/completions/fffs", "zsh/site-functions/_fffs", "fish/vendor_completions.d/fffs.fish"


def run(*command: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program, or skip the test where it is not installed."""
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)


def parsers(words: tuple[str, ...], command: argparse.ArgumentParser) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """Yield the words of each command, and the options that it takes."""
    yield words, [option for action in command._actions for option in action.option_strings]
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield from parsers((*words, name), inner)


COMMANDS = dict(parsers(("fffs",), parser.make_parser()))


def bash_completes(line: str) -> set[str]:
    """Return what bash offers for the last word of a line."""
    words = line.split(" ")
    script = """
        source "$1"; shift
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
        function=$(complete -p fffs | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
        "$function" fffs "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = run("bash", "-c", script, "bash", str(SHARE / BASH), *words)
    assert not done.stderr
    return set(done.stdout.split())


def test_every_command_has_a_man_page_with_its_options() -> None:
    assert len(COMMANDS) > 15
    for words, options in COMMANDS.items():
        page = (SHARE / "man/man1" / f"{'-'.join(words[:2])}.1").read_text()
        assert " ".join(words) in page
        for option in options:
            assert option.replace("-", "\\-") in page, (words, option)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_man_page_has_no_warnings(page: Path) -> None:
    for line in page.read_text().splitlines():
        assert re.match(r"\.(TH|SH|PP|TP|B|BR|nf|fi)( |$)|[^.']|$", line), line
    if shutil.which("mandoc"):
        lint = run("mandoc", "-Tlint", "-Wwarning", str(page)).stdout
        assert all("missing date" in line for line in lint.splitlines()), lint
    if shutil.which("groff"):
        done = run("groff", "-man", "-ww", "-z", "-Tutf8", str(page))
        assert (done.returncode, done.stderr) == (0, "")


def test_wheels_install_all_of_it() -> None:
    section = (ROOT / "pyproject.toml").read_text().split("[tool.setuptools.data-files]")[1].split("\n[")[0]
    patterns = [pattern for line in section.splitlines() for pattern in re.findall(r'"([^"]+)"', line)[1:]]
    listed = {path for pattern in patterns for path in ROOT.glob(pattern)}
    assert listed == {path for path in SHARE.rglob("*") if path.is_file()}


def test_bash_completes_commands_options_and_choices() -> None:
    assert bash_completes("fffs mo") == {"mount"}
    assert bash_completes("fffs ") >= {words[1] for words in COMMANDS if len(words) == 2}
    assert bash_completes("fffs plan co") == {"convert", "commit"}
    assert bash_completes("fffs pack --al") == {"--align"}
    assert bash_completes("fffs convert --to tf") == {"tfrecord"}


def test_bash_completes_names_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos.ffr").touch()
    monkeypatch.chdir(tmp_path)
    assert bash_completes("fffs verify pho") == {"photos.ffr"}


def test_fish_completes_commands() -> None:
    done = run("fish", "--no-config", "-c", f"source {SHARE / FISH}; complete -C 'fffs mo'")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["mount"]


def test_zsh_reads_the_completion() -> None:
    assert run("zsh", "-n", str(SHARE / ZSH)).stderr == ""
    assert (SHARE / ZSH).read_text().startswith("#compdef fffs")
