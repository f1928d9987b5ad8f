"""Ranks that are processes, each with NVSHMEM, on the one GPU: by MPS, else in time slices."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from cases import Case

from deep_ll.runtime.cuda import network, preflight
from deep_ll.testing import RankError, RankPool
from on_gpu import loopback
from on_gpu.batch import open_buffer
from on_gpu.device import CudaDevice
from on_gpu.section import ABSENT, Answer, Job, in_a_line, verdict

WORLDS = (2, 4)
CONTROL = "nvidia-cuda-mps-control"
NEEDED = ("nvshmem4py", "nvshmem")
TIMEOUT_S = 20.0


def _cases(world: int) -> list[Case]:
    sizes: dict[str, Any] = {"world": world, "experts": 4 * world, "hidden": 640, "rounds": 2}
    uneven = Case(**sizes, tokens=tuple(range(5, 5 + world)))
    return [uneven, Case(**sizes, cast="bf16", mode="hook", zero_copy=True)]


def open_only(group: Any, case: Case, environment: dict[str, str]) -> None:
    """What NVSHMEM may refuse, or end the process at."""
    os.environ.update(environment)  # CUDA reads it when it starts in this process: now
    with CudaDevice().stream(), open_buffer(group, case):
        pass


def exchange(group: Any, case: Case, spoil: bool) -> list[str]:
    """One rank's rounds."""
    return loopback.exchange(group, CudaDevice(spoil), case, loopback.rounds_of(case), {})


@contextlib.contextmanager
def mps() -> Iterator[dict[str, str]]:
    """A daemon of our own that lets processes use the GPU at once: the variables of its clients;
    none where it does not start."""
    if shutil.which(CONTROL) is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="deep_ll-mps-") as folder:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        if not _control(places, "-d"):
            yield {}
            return
        try:
            yield {**places, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // max(WORLDS))}
        finally:
            _control(places, said="quit\n")


def _control(places: dict[str, str], *arguments: str, said: str = "") -> bool:
    """Whether it did as told. The daemon keeps its output open, so nothing may wait for that."""
    try:
        result = subprocess.run(
            [CONTROL, *arguments],
            input=said,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | places,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def _try(world: int, spoil: bool, environment: dict[str, str]) -> tuple[list[str], str]:
    """What is wrong, and what kept the ranks from beginning."""
    cases = _cases(world)
    with RankPool(world) as pool:
        try:
            pool.run(open_only, cases[0], environment, timeout_s=TIMEOUT_S)
        except RankError as error:
            return [], _why(error)
        try:
            found = [pool.run(exchange, case, spoil, timeout_s=TIMEOUT_S) for case in cases]
        except RankError as error:
            return [f"EP{world}: {_why(error)}"], ""
    return [text for ranks in found for texts in ranks for text in texts], ""


def _why(error: RankError) -> str:
    return in_a_line(error if error.__cause__ is None else error.__cause__)


def _all(job: Job, how: str, environment: dict[str, str]) -> Answer:
    """All numbers of ranks, one way to share the GPU."""
    problems: list[str] = []
    words = []
    for world in WORLDS:
        job.say(f"{world} processes {how}")
        wrong, kept = _try(world, job.spoil, environment)
        if kept:
            words.append(f"EP{world} {how} did not start: {kept}")
            break
        problems += wrong
        words.append(f"EP{world} {how}")
    if not kept and network.built():
        # The kernels for networks, whose calls NVSHMEM carries out by stores here.
        wrong, why = _try(WORLDS[0], job.spoil, environment | {"DEEP_LL_FORCE_LINK": "1"})
        problems += wrong
        words.append(f"EP{WORLDS[0]} by links" + (f" did not start: {why}" if why else ""))
    answer = verdict(problems, "; ".join(words))
    return answer._replace(status=ABSENT) if kept and not problems else answer


def run(job: Job) -> Answer:
    """The section."""
    if job.size == "dry":
        return Answer(ABSENT, "a dry run has no processes with a GPU", {})
    absent = [each for each in preflight.survey() if each.name in NEEDED and not each.ok]
    if absent:
        reasons = "; ".join(f"{each.name}: {each.found}, {each.cure}" for each in absent)
        return Answer(ABSENT, reasons, {})
    with mps() as environment:
        by_mps = _all(job, "by MPS", environment) if environment else None
    if by_mps is not None and by_mps.status != ABSENT:
        return by_mps
    answer = _all(job, "in time slices", {})
    before = f"there is no {CONTROL} that starts" if by_mps is None else by_mps.summary
    return answer._replace(summary=f"{answer.summary}; {before}")
