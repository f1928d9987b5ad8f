"""The command line of gpu_check.py."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.progress import Progress
from on_gpu import report, runner
from on_gpu.section import RIGHT, WRONG, Answer

DESCRIPTION = """Checks deep_ll on one GPU, which plays all ranks, in less than ten minutes: results
against the oracle, many rounds, CUDA graphs, compute-sanitizer, kernel times, and processes with
NVSHMEM. Exit codes: 0 all right, 1 something is wrong, 2 kernels cannot run here."""
ALL_RIGHT, SOMETHING_WRONG, CANNOT_RUN, INTERRUPTED = 0, 1, 2, 130
LIMIT_S = 590.0
LEAST_S = 5.0  # a section with less is not begun

Answers = dict[str, tuple[Answer, float]]


def parser() -> argparse.ArgumentParser:
    names = [section.name for section in runner.SECTIONS]
    parser = argparse.ArgumentParser(description=DESCRIPTION)
    parser.add_argument("--json", type=Path, default=Path("gpu_check.json"), metavar="FILE")
    parser.add_argument("--only", nargs="+", choices=names, default=[], help="these sections")
    parser.add_argument("--small", action="store_true", help="fewer cases and rounds")
    parser.add_argument(
        "--dry-run", action="store_true", help="without a GPU: does this script itself work?"
    )
    parser.add_argument(
        "--spoil", action="store_true", help="flip bits of results: the check must notice"
    )
    return parser


def main() -> int:
    arguments = parser()
    args = arguments.parse_args()
    if not args.json.absolute().parent.is_dir():
        arguments.error(f"{args.json}: there is no folder {args.json.absolute().parent}")
    size = "dry" if args.dry_run else "small" if args.small else "full"
    progress, begin = Progress(), time.monotonic()
    answers: Answers = {}
    try:
        ask(runner.Options(size, args.spoil), args.only, progress.say, answers)
        code = exit_code(answers)
    except KeyboardInterrupt:
        code = INTERRUPTED
    progress.done()
    if "facts" in answers:
        content = report.as_json(answers, time.monotonic() - begin, code)
        args.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        show(answers)
    return code


def ask(
    options: runner.Options, names: list[str], say: Callable[[str], None], answers: Answers
) -> None:
    """Runs sections, one after another; without the facts no other."""
    begin = time.monotonic()
    for section in runner.named(names):
        left = LIMIT_S - (time.monotonic() - begin)
        say(f"{section.name}: {section.what}")
        if left < LEAST_S:
            answers[section.name] = Answer(WRONG, "no time was left for it", {}), 0.0
            continue
        limited = section._replace(limit_s=min(section.limit_s, left))
        told = f"{section.name}: "
        answers[section.name] = runner.run(
            limited, options, lambda line, told=told: say(told + line)
        )
        if section.name == "facts" and answers["facts"][0].status != RIGHT:
            return


def exit_code(answers: Answers) -> int:
    if answers["facts"][0].status != RIGHT:
        return CANNOT_RUN
    wrong = any(answer.status == WRONG for answer, _ in answers.values())
    return SOMETHING_WRONG if wrong else ALL_RIGHT


def show(answers: Answers) -> None:
    """The tables; what is missing goes to the error stream."""
    print(report.sections_table(answers))
    for reason in answers["facts"][0].details.get("missing", []):
        print(f"missing: {reason}", file=sys.stderr)
    if "times" in answers:
        table = report.times_table(answers["times"][0].details.get("times", []))
        print(f"\n{table}" if table else "", end="\n" if table else "")
