"""scripts/release: what it refuses, and what it prints. Its steps are replaced, and it has a checkout of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fffs.version import __version__

ROOT = Path(__file__).parents[1]
STEPS = ("check", "test", "wheel", "strangers")


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", folder, *identity, *arguments], check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "A change")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that can be released."""
    for name in ("scripts/wheel.d", "fffs"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("scripts/release", "scripts/wheel.d/readme.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for step in STEPS:
        (tmp_path / "scripts" / step).write_text("#!/bin/sh\n")
        (tmp_path / "scripts" / step).chmod(0o755)
    (tmp_path / "fffs/version.py").write_text('__version__ = "3.4.5"\n')
    (tmp_path / "pyproject.toml").write_text('[project.urls]\nSource = "https://host/fffs"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 3.4.5 (2026-01-31)\n\n## 3.4.4 (2026-01-01)\n")
    git(tmp_path, "init", "--quiet")
    commit(tmp_path)
    return tmp_path


def release(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([folder / "scripts/release", *arguments], capture_output=True, text=True, check=False)


def test_it_prints_how_to_upload(checkout: Path) -> None:
    git(checkout, "tag", "v3.4.5")  # of this commit
    done = release(checkout)
    assert done.returncode == 0, done.stderr
    assert re.findall("^==== scripts/(.*)$", done.stdout, re.MULTILINE)[:3] == ["check", "test", "wheel"]
    assert "git tag --annotate v3.4.5 " in done.stdout and "twine upload dist/fffs-3.4.5*" in done.stdout


@pytest.mark.parametrize("step", ["check", "test", "wheel"])
def test_it_ends_when_a_step_fails(checkout: Path, step: str) -> None:
    (checkout / "scripts" / step).write_text("#!/bin/sh\nexit 1\n")
    commit(checkout)
    done = release(checkout)
    assert (done.returncode, done.stderr) == (1, f"release: failed: scripts/{step}\n")
    assert "twine upload" not in done.stdout


def test_it_refuses_changes_that_are_not_committed(checkout: Path) -> None:
    (checkout / "new").touch()
    assert "not committed" in release(checkout).stderr


@pytest.mark.parametrize("head", ["3.4.5 (unreleased)", "3.4.6 (2026-01-31)", "3.4.5"])
def test_it_refuses_another_head_of_the_change_log(checkout: Path, head: str) -> None:
    (checkout / "CHANGELOG.md").write_text(f"# Changelog\n\n## {head}\n\n## 3.4.5 (2026-01-31)\n")
    commit(checkout)
    done = release(checkout)
    assert done.stderr.startswith(f'release: CHANGELOG.md: the first version is "{head}": expected "3.4.5 (DATE)"')


def test_it_refuses_a_version_that_was_released(checkout: Path) -> None:
    git(checkout, "tag", "v3.4.5")
    (checkout / "more").touch()
    commit(checkout)
    assert "v3.4.5 is the tag of another commit" in release(checkout).stderr


def test_it_refuses_a_project_without_an_address(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text('# [project.urls]\n# Source = "https://host/fffs"\n')
    commit(checkout)
    assert release(checkout).stderr.startswith("release: pyproject.toml: [project.urls] has no Source: ")


def test_the_change_log_begins_with_this_version_and_lists_changes_by_kind() -> None:
    versions = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert versions[0].startswith(f"{__version__} (")
    by_kind = [text for text in versions if not text.startswith("0.1.0")]
    assert by_kind
    for text in by_kind:
        kinds = re.findall("^### (.*)$", text, re.MULTILINE)
        assert kinds == [kind for kind in ("Added", "Changed", "Deprecated", "Removed", "Fixed") if kind in kinds]
