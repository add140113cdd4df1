"""Every public name has an example, and the examples are true."""

from __future__ import annotations

from pathlib import Path

import mounting
import pytest
from documented import MODULES, names_without_example, run_docstrings

import fffs

ELSEWHERE = {"fffs.mount", "fffs.ray"}
"""Modules whose examples need a mount, or Ray: the latter run in test_engine_data.py."""


def test_every_public_name_has_an_example() -> None:
    assert names_without_example(MODULES) == []


def test_all_public_modules_are_documented() -> None:
    assert {f"fffs.{name}" for name in fffs._MODULES} <= set(MODULES)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # examples leave closing to the garbage collector
def test_the_examples_of_docstrings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    count = sum(run_docstrings(module, tmp_path) for module in MODULES if module not in ELSEWHERE)
    assert count > 60


@pytest.mark.fuse
def test_the_examples_of_docstrings_of_the_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        assert run_docstrings("fffs.mount", tmp_path) > 5
    finally:
        mounting.detach_all(tmp_path)
