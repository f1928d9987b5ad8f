"""Faults put into the kernels for GPUs, which the simulated GPUs must notice.

docs/memory_model.md says what the faults of gpu_mutants/ have shown.
"""

from __future__ import annotations

import functools
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import gpu_kernels
import ptx
import pytest
from cpp.builds import copy_with
from gpu_mutants import CHOSEN, MUTANTS, RUNS, Mutant
from late_programs import HELPERS

BEFORE_HOPPER = ("few", "many", "many_bf16", "wide", "read", "late", "late_pulled")
JOBS = 2  # one compiles while another runs

pytestmark = [
    pytest.mark.skipif(gpu_kernels.NVCC is None, reason=gpu_kernels.WHY_NOT),
    pytest.mark.slow,
    pytest.mark.timeout(120),
]


def kept(arch: str, route: str = "") -> str:
    return gpu_kernels.kept_ptx(arch, route=route).read_text(encoding="utf-8")


NETWORK_RUNS = [run for run, what in RUNS.items() if what.network is not None]


@functools.cache
def unchanged(arch: str = "sm_90a", route: str = "") -> ptx.Program:
    return ptx.load(kept(arch, route) + HELPERS)


@pytest.mark.parametrize("run", sorted(set(RUNS) - set(NETWORK_RUNS)))
def test_kernels_are_right(run: str) -> None:
    assert RUNS[run].complaint(unchanged()) == ""


@pytest.mark.parametrize("run", BEFORE_HOPPER)
def test_kernels_are_right_before_hopper(run: str) -> None:
    assert RUNS[run].complaint(unchanged("sm_80")) == ""


@pytest.mark.parametrize("route", gpu_kernels.ROUTES)
@pytest.mark.parametrize("run", NETWORK_RUNS)
def test_kernels_are_right_over_a_network(route: str, run: str) -> None:
    assert RUNS[run].complaint(unchanged(route=route)) == ""


def text_of(mutant: Mutant, folder: Path) -> str:
    """Its PTX."""
    csrc = copy_with(mutant.edits, folder)
    if not mutant.instructions:
        return gpu_kernels.compile_ptx(csrc, mutant.arch, route=mutant.route)
    text = kept(mutant.arch, mutant.route)
    for old, new in mutant.instructions:
        assert old in text, f"the kernels do not use {old}"
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("left_out", sorted({*MUTANTS} - {*CHOSEN}))
def test_fault_can_be_put_in(left_out: str, tmp_path: Path) -> None:
    """Of those that are not: the source has what they change."""
    copy_with(MUTANTS[left_out].edits, tmp_path)


def judge(mutant: Mutant, folder: Path) -> str:
    """What is noticed of it; nothing: nothing is."""
    program = ptx.load(text_of(mutant, folder) + HELPERS)
    shutil.rmtree(folder)
    complaints = (RUNS[run].complaint(program) for run in mutant.runs.split())
    return next((complaint for complaint in complaints if complaint), "")


@pytest.fixture(scope="module")
def verdicts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[str]]]:
    """What became of each mutant that was selected; they are compiled and run side by side."""
    ptx.build.engine()
    calls = [getattr(item, "callspec", None) for item in request.session.items]
    chosen = [call.params["gpu_mutant"] for call in calls if call and "gpu_mutant" in call.params]
    with ThreadPoolExecutor(JOBS) as workers:
        yield {
            name: workers.submit(judge, MUTANTS[name], tmp_path_factory.mktemp("mutant"))
            for name in chosen
        }
        workers.shutdown(cancel_futures=True)


@pytest.mark.parametrize("gpu_mutant", CHOSEN)
def test_fault_is_noticed(verdicts: dict[str, Future[str]], gpu_mutant: str) -> None:
    fault, complaint = MUTANTS[gpu_mutant], verdicts[gpu_mutant].result()
    if fault.equivalent:
        assert complaint == "", f"it is not true that {fault.equivalent}"
    else:
        assert re.search(fault.sign, complaint), f"unnoticed: {complaint}"
