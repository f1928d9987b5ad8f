"""The process of one section: runs it and leaves its answer in a file."""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import json
import os
import sys
import traceback
from pathlib import Path

from on_gpu.section import WRONG, Answer, Job, in_a_line


def _say(text: str) -> None:
    print(text, flush=True)


def _answer(section: str, size: str, spoil: bool) -> Answer:
    module = importlib.import_module(f"on_gpu.{section}")
    if section == "facts":
        answer: Answer = module.answer(size == "dry")
    else:
        answer = module.run(Job(size, spoil, _say))
    return answer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("section")
    parser.add_argument("size")
    parser.add_argument("result", type=Path)
    parser.add_argument("--spoil", action="store_true")
    args = parser.parse_args()
    faulthandler.enable()
    try:
        answer = _answer(args.section, args.size, args.spoil)
    except BaseException as error:
        answer = Answer(WRONG, in_a_line(error), {"traceback": traceback.format_exc().splitlines()})
    args.result.write_text(json.dumps(answer._asdict()), encoding="utf-8")
    sys.stdout.flush()
    # Kernels that still wait for a rank would keep the process for as long as they wait.
    os._exit(0)


if __name__ == "__main__":
    main()
