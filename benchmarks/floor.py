"""The floor program: builds it on first use and drives it."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.workload import Inputs, Shape

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "benchmarks"
# Contraction would fuse the cast's product and sum: other bits than the library's.
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-std=c++20", "-pthread")
STOP_TIMEOUT_S = 10.0
CLEARLY, HARDLY = 1.15, 1.03  # slower by this


Walls = dict[str, dict[str, list[float]]]  # milliseconds by operation and kind of store


class FloorError(RuntimeError):
    """The floor could not be built, or ended by itself."""


def build() -> Path:
    """The program for shared memory."""
    others = [*sorted(HERE.glob("floor_*.hpp")), *sorted((HERE / "floor_kernels").glob("*.hpp"))]
    return compiled(HERE / "floor.cpp", others, FLAGS)


def compiled(source: Path, others: Sequence[Path], flags: Sequence[str]) -> Path:
    """The program of this source (and what it includes), compiler and machine."""
    compiler = shlex.split(os.environ.get("CXX") or "g++")
    digest = hashlib.sha256(" ".join([*compiler, *flags, cpu_flags()]).encode())
    for path in (source, *others):
        digest.update(path.read_bytes())
    program = BUILD / f"{source.stem}-{digest.hexdigest()[:16]}"
    if program.exists():
        return program
    BUILD.mkdir(parents=True, exist_ok=True)
    partial = program.with_suffix(f".{os.getpid()}.tmp")
    command = [*compiler, str(source), *flags, "-o", str(partial)]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        raise FloorError(
            f"no C++ compiler for the floor ({error}): set CXX, or --no-floor"
        ) from None
    if result.returncode != 0:
        raise FloorError(f"{shlex.join(command)}\n{result.stderr}")
    partial.rename(program)
    return program


def cpu_flags() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


class FloorProgram:
    """A running program that is told `run N` and answers with times."""

    kernels: str | None = None

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that an interrupt reaches the harness alone
            **options,
        )

    def run(self, num_iters: int) -> Walls:
        """Wall times, as contestants.Ranks.run gives them, by what moved the bytes."""
        walls: Walls = self._ask(f"run {num_iters}")
        return walls

    def close(self) -> None:
        """Ends it by ending its input."""
        try:
            self._process.communicate(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _ask(self, line: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        line = self._process.stdout.readline()
        if not line:
            message = self._process.stderr.read().strip()
            raise FloorError(f"the floor ended with {self._process.wait()}: {message}")
        return json.loads(line)


class Floor(FloorProgram):
    """Of ranks that share memory, with the routing of the inputs."""

    def __init__(self, shape: Shape, inputs: Inputs) -> None:
        fd = inputs.routing.fileno()
        options = {
            "--ep": shape.ep,
            "--tokens": shape.tokens,
            "--hidden": shape.hidden,
            "--topk": shape.topk,
            "--experts": shape.experts,
            "--dtype": shape.dtype,
            "--routing": fd,
        }
        words = [str(part) for option in options.items() for part in option]
        super().__init__([str(build()), *words], pass_fds=[fd])
        self.kernels = self._answer()["kernels"]
        self._store = ""  # both kinds

    def run(self, num_iters: int) -> Walls:
        """Wall times of both kinds of stores."""
        walls: Walls = self._ask(f"run {num_iters} {self._store}")
        if not self._store:
            self._store = _clear_winner(walls)
        return walls


def _clear_winner(walls: Walls) -> str:
    """The kind of store that is clearly better for the pair and nowhere worse, or nothing."""
    for store, other in (("plain", "stream"), ("stream", "plain")):
        slower = {
            op: statistics.median(times[other]) / statistics.median(times[store])
            for op, times in walls.items()
        }
        if slower["pair"] > CLEARLY and min(slower.values()) > 1 / HARDLY:
            return store
    return ""
