"""Kernels for GPUs that go on without ranks, executed as PTX on simulated GPUs."""

from __future__ import annotations

from collections.abc import Callable

import gpu_kernels
import pytest
import shrink_programs
from cases import Case
from gpu_programs import PROGRAMS
from gpu_world import Layout, World

pytestmark = pytest.mark.skipif(gpu_kernels.NVCC is None, reason=gpu_kernels.WHY_NOT)

THREE = {"world": 3, "experts": 6, "tokens": (5, 6, 7), "max_tokens": 8}
CASES = [Case(**THREE), Case(**THREE, cast="bf16", zero_copy=True)]
LAYOUTS = [Layout(1, 4, 1), Layout(3, 8, 2)]
# In steps of the simulation: longer than a round.
SOON_NS = 10**7


def world(case: Case, layout: Layout) -> World:
    return World(gpu_kernels.program(), case, layout, SOON_NS, shrink=True)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_nobody_is_missing(name: str, layout: Layout, case: Case) -> None:
    PROGRAMS[name](World(gpu_kernels.program(), case, layout, shrink=True))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "program",
    [
        shrink_programs.never_comes,
        shrink_programs.rows_are_lost,
        shrink_programs.others_have_heard,
        shrink_programs.goes_on,
        shrink_programs.meetings,
    ],
)
def test_one_is_missing(program: Callable[[World], None], layout: Layout, case: Case) -> None:
    program(world(case, layout))
