"""NVIDIA's compute-sanitizer on a small exchange: memory that is not ours, races in a block."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from on_gpu.section import ABSENT, RIGHT, WRONG, Answer, Job

NAME = "compute-sanitizer"
TOOLS = ("memcheck", "racecheck")
PROGRAM = Path(__file__).parent / "tiny.py"
FOUND = 9  # its exit code if it reports anything
STUCK = 3  # tiny.py's
TIMEOUT_S = 40
SUMMARY = re.compile(r"=+ (?:ERROR|RACECHECK) SUMMARY: .*")
SHOWN_LINES = 40


class Run(NamedTuple):
    """How one run of tiny.py ended."""

    code: int | None  # None: it did not end
    output: str


def find() -> str | None:
    """Where the tool is: on PATH, in a toolkit, or from a package of Python."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    toolkits = [Path(home) for home in (*homes, "/usr/local/cuda") if home]
    places = [toolkit / folder for toolkit in toolkits for folder in ("bin", NAME)]
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or () if spec else ():
        places += [path.parent for path in sorted(Path(folder).glob(f"*/**/{NAME}"))]
    path = os.pathsep.join([os.environ.get("PATH", ""), *map(str, places)])
    return shutil.which(NAME, path=path)


def watch(command: list[str], world: int, dry: bool = False) -> Run:
    """Runs tiny.py under a command."""
    program = [sys.executable, str(PROGRAM), str(world), *(["dry"] if dry else [])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        result = subprocess.run(
            [*command, *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        output = error.output or b""
        return Run(None, output.decode() if isinstance(output, bytes) else output)
    return Run(result.returncode, result.stdout)


def judge(tool: str, runs: dict[int, Run]) -> tuple[str, str]:
    """Status and words for a tool, by how it ended with so many ranks."""
    for world, run in runs.items():
        if run.code in (None, STUCK):
            continue  # it may let kernels run one after the other only
        summary = SUMMARY.findall(run.output)
        text = f"{tool} of EP{world}: {summary[-1].strip('= ') if summary else 'no summary'}"
        if run.code == 0 and summary:
            return RIGHT, text
        if not summary and run.code not in (1, FOUND):
            return ABSENT, f"{tool}: it ended with {run.code} by itself"
        return WRONG, f"{text}, exit code {run.code}"
    return ABSENT, f"{tool}: no progress under it"


def check(path: str, tool: str, worlds: tuple[int, ...]) -> tuple[str, str, dict[int, Run]]:
    """Runs a tool with so many ranks, with fewer if they make no progress."""
    options = ["--tool", tool, "--error-exitcode", str(FOUND), "--kernel-name", "kns=deep_ll"]
    command = [path, *options, "--target-processes", "application-only"]
    runs: dict[int, Run] = {}
    for world in worlds:
        runs[world] = watch(command, world)
        if runs[world].code not in (None, STUCK):
            break
    return *judge(tool, runs), runs


def run(job: Job) -> Answer:
    """The section."""
    if job.size == "dry":
        alone = watch([], 2, dry=True)
        text = f"the program alone ended with {alone.code}"
        status = ABSENT if alone.code == 0 else WRONG
        return Answer(status, text, {"output": _last_lines(alone)})
    path = find()
    if path is None:
        cure = "pip install nvidia-cuda-sanitizer-api, or the CUDA toolkit"
        return Answer(ABSENT, f"there is no {NAME}: {cure}", {})
    details: dict[str, object] = {"path": path}
    statuses, texts, worlds = [], [], (2, 1)
    for tool in TOOLS:
        job.say(tool)
        status, text, runs = check(path, tool, worlds)
        worlds = worlds[-1:] if len(runs) > 1 else worlds  # no use to wait again
        details[tool] = {f"EP{world}": _last_lines(run) for world, run in runs.items()}
        statuses.append(status)
        texts.append(text)
    worst = next(status for status in (WRONG, ABSENT, RIGHT) if status in statuses)
    return Answer(worst, "; ".join(texts), details)


def _last_lines(run: Run) -> list[str]:
    return run.output.splitlines()[-SHOWN_LINES:]
