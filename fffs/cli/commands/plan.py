"""``fffs plan``: packs, converts or dumps into parts in three steps."""

from __future__ import annotations

import argparse

from fffs.base.text import human, plural
from fffs.cli.commands.pack import exit_code
from fffs.cli.output import Warnings, printable, put, say
from fffs.cli.program import interrupt_once
from fffs.cli.progress import ProgressBar
from fffs.cli.report_file import refuse_report, write_report
from fffs.cluster.part_plan import PartPlan
from fffs.cluster.plan_target import remove_plan
from fffs.cluster.run_plan import report_of, tell_left_out
from fffs.converting.convert_plan import plan_convert
from fffs.converting.plans import counted, load_plan
from fffs.errors import Exit, UsageError
from fffs.packing.dump_plan import plan_dump
from fffs.packing.pack_parts import summary_of
from fffs.packing.pack_plan import plan_pack


def run(args: argparse.Namespace) -> int:
    """Plan, run tasks, commit or abort."""
    interrupt_once()
    return {"pack": _pack, "convert": _convert, "dump": _dump, "run": _run, "commit": _commit, "abort": _abort}[
        args.action
    ](args)


def _pack(args: argparse.Namespace) -> int:
    plan = plan_pack(
        args.folder, args.target, args.parts, align=args.align, keep_going=args.keep_going, restart=args.restart
    )
    return _tell(plan, args)


def _convert(args: argparse.Namespace) -> int:
    plan = plan_convert(
        args.source,
        args.target,
        args.parts,
        from_=args.source_format,
        prefix=args.prefix,
        to=args.to,
        align=args.align,
        verify=args.verify,
        restart=args.restart,
    )
    return _tell(plan, args)


def _dump(args: argparse.Namespace) -> int:
    return _tell(plan_dump(args.dataset, args.target, args.parts, restart=args.restart), args)


def _tell(plan: PartPlan, args: argparse.Namespace) -> int:
    if args.json:
        put(plan.to_json().encode() + b"\n")
        return Exit.OK
    count = len(plan.tasks)
    say(
        f"{args.target}: {human(plan.total_bytes)} in {plural(count, 'task')}, from 0 to {count - 1}; "
        f"run each with fffs plan run {args.target} --task K, and then fffs plan commit {args.target}"
    )
    return Exit.OK


def _run(args: argparse.Namespace) -> int:
    plan = load_plan(args.target)
    for number in args.task if args.task is not None else range(len(plan.tasks)):
        if number >= len(plan.tasks):
            raise UsageError(f"{args.target}: there is no task {number}, the last is {len(plan.tasks) - 1}")
        _run_task(plan, number, args)
    return Exit.OK


def _run_task(plan: PartPlan, number: int, args: argparse.Namespace) -> None:
    task = plan.tasks[number]
    with ProgressBar(printable(f"writing {task.name}")) as bar:
        result = task.run(args.jobs, bar)
    if not args.quiet:
        rate = human(result.total_bytes / max(result.seconds, 1e-9))
        size = f"{counted(plan, result.records)}, {human(result.total_bytes)}"
        say(f"{task.name}: {size} in {result.seconds:.1f} s ({rate}/s)")


def _commit(args: argparse.Namespace) -> int:
    if args.report:
        refuse_report(args.report)
    plan = load_plan(args.target)
    results = plan.commit()
    if args.report:
        write_report(args.report, report_of(plan, results))
    with Warnings() as warn:
        tell_left_out(results, args.target, warn)
    summary = summary_of(results)
    if not args.quiet:
        parts, size = plural(len(results), "part"), human(summary.total_bytes)
        say(f"{args.target}: {counted(plan, summary.files)} in {parts}, {size}")
    return exit_code(summary, args.target)


def _abort(args: argparse.Namespace) -> int:
    remove_plan(args.target)
    return Exit.OK
