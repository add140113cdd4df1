"""``fffs doctor``: what this machine can do, what is missing, and the cure."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict

from fffs.cli.checks.file_checks import check_file
from fffs.cli.checks.finding import Condition, Finding
from fffs.cli.checks.mount_checks import check_mounting
from fffs.cli.checks.package_checks import check_packages
from fffs.cli.checks.reading_checks import check_reading
from fffs.cli.output import put, say
from fffs.errors import Exit
from fffs.version import __version__

SUBJECTS = {"reading": check_reading, "mounting": check_mounting, "packages": check_packages}
NAME_WIDTH = 16


def run(args: argparse.Namespace) -> int:
    """Look at everything. The exit code tells whether something is impossible."""
    found = {subject: list(check()) for subject, check in SUBJECTS.items()}
    for path in args.file:
        found[path] = list(check_file(path))
    if args.json:
        findings = [
            {"subject": subject, **asdict(finding), "state": finding.state.value}
            for subject, each in found.items()
            for finding in each
        ]
        put(json.dumps({"fffs": __version__, "findings": findings}, indent=1).encode() + b"\n")
    else:
        for subject, each in found.items():
            say(f"{subject}:")
            for line in _lines(each):
                say(line)
    impossible = {subject for subject, each in found.items() if any(f.state is Condition.PROBLEM for f in each)}
    if "mounting" in impossible:
        return Exit.MOUNT
    return Exit.FORMAT if impossible & set(args.file) else Exit.OK


def _lines(findings: list[Finding]) -> Iterator[str]:
    for finding in findings:
        yield f"  {finding.state.value:8} {finding.name:{NAME_WIDTH}} {finding.found}"
        if finding.cure:
            yield f"  {'':8} {'':{NAME_WIDTH}} -> {finding.cure}"
