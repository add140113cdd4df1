"""Runs a Python fuzz target under atheris: run_python.py TARGET [libFuzzer's options and arguments]."""

from __future__ import annotations

import importlib
import sys

import atheris

with atheris.instrument_imports(include=["fffs"]):
    import fffs.layouts
    import fffs.verify  # noqa: F401

if __name__ == "__main__":
    target = importlib.import_module(f"fuzz.fuzz_{sys.argv.pop(1)}")
    atheris.Setup(sys.argv, target.one_input)
    atheris.Fuzz()
