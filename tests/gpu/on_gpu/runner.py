"""Runs each section in a process of its own, so that one that hangs or crashes costs only itself.

Needs no torch, and starts no CUDA.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from on_gpu.section import WRONG, Answer

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FOLDERS = (ROOT, ROOT / "tests", ROOT / "tests" / "gpu", ROOT / "tests" / "gpu_free")
SHOWN_LINES = 30


class Section(NamedTuple):
    """One question: the module that answers it, and the seconds it may take. Together they stay
    under ten minutes."""

    name: str
    limit_s: float
    what: str


SECTIONS = (
    Section("facts", 40, "what GPU and software this is"),
    Section("loopback", 140, "ranks that are threads, in every mode, against the oracle"),
    Section("endurance", 80, "many rounds of the same values"),
    Section("graphs", 60, "captured calls, replayed with other inputs"),
    Section("times", 110, "kernel times beside the memory's floor"),
    Section("processes", 79, "ranks that are processes with NVSHMEM, by links too"),
    Section("sanitizer", 90, "compute-sanitizer on a small exchange"),
)


class Options(NamedTuple):
    """How to run sections; see `Job` and `CudaDevice`."""

    size: str = "full"
    spoil: bool = False


def run(section: Section, options: Options, say: Callable[[str], None]) -> tuple[Answer, float]:
    """A section's answer and how long it took. Its progress goes to `say`."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="deep_ll-gpu-check-") as folder:
        result, errors = Path(folder) / "answer.json", Path(folder) / "errors"
        flags = ["--spoil"] if options.spoil else []
        command = [sys.executable, str(HERE / "child.py"), section.name, options.size, str(result)]
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [*command, *flags],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment(options.size),
                start_new_session=True,  # so that its own processes end with it
            )
        try:
            last = _follow(process, begin + section.limit_s, say)
        finally:  # an interrupt must not leave it behind
            timed_out = _end(process)
        answer = _read(result)
        if answer is None:
            answer = _lost(process.returncode, timed_out, section.limit_s, last, errors)
    return answer, time.monotonic() - begin


def environment(size: str) -> dict[str, str]:
    """Variables for a section's process."""
    changed = os.environ | {
        "PYTHONPATH": os.pathsep.join([*map(str, FOLDERS), os.environ.get("PYTHONPATH", "")]),
        # Streams that share a connection run one after the other, and ranks wait for each other.
        "CUDA_DEVICE_MAX_CONNECTIONS": "32",
        # Loading a kernel at its first launch may wait for one that waits for a peer.
        "CUDA_MODULE_LOADING": "EAGER",
    }
    if size == "dry":
        from fake_cuda.process import with_fake_driver

        changed |= with_fake_driver()
    return changed


def _follow(process: Any, deadline: float, say: Callable[[str], None]) -> str:
    """Passes lines on until the process closes its output or its time is over; the last line."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in process.stdout:
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    last = ""
    with contextlib.suppress(queue.Empty):
        while (line := lines.get(timeout=max(0.0, deadline - time.monotonic()))) is not None:
            last = line
            say(line)
    return last


def _end(process: Any) -> bool:
    """Whether it had to be ended. Its process group is ours alone."""
    try:
        process.wait(timeout=2)
        return False
    except subprocess.TimeoutExpired:
        return True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _read(path: Path) -> Answer | None:
    if not path.is_file():
        return None
    try:
        return Answer(**json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        return None


def _lost(code: int, timed_out: bool, limit_s: float, last: str, errors: Path) -> Answer:
    """The answer of a section that left none."""
    why = f"not done after {limit_s:.0f} s" if timed_out else f"its process ended with {code}"
    text = f"{why}; the last it said: {last or 'nothing'}"
    lines = errors.read_text(encoding="utf-8", errors="replace").splitlines()
    return Answer(WRONG, text, {"errors": lines[-SHOWN_LINES:]})


def named(names: list[str]) -> Iterator[Section]:
    """Sections in their order; all of them without names. Facts come first in any case."""
    for section in SECTIONS:
        if not names or section.name in ("facts", *names):
            yield section
