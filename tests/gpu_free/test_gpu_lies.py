"""Nonsense that a peer leaves in a GPU's heap is told, and becomes no address."""

import gpu_kernels
import pytest
from cases import Case
from gpu_lies import LIES
from gpu_world import Layout, World
from test_gpu_failures import SOON_NS, check_does_nothing

pytestmark = pytest.mark.skipif(gpu_kernels.NVCC is None, reason=gpu_kernels.WHY_NOT)

CASE = Case(world=3, experts=6, tokens=(5, 6, 7), max_tokens=8)
LAYOUTS = [Layout(1, 4, 1), Layout(3, 8, 2)]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_lie(layout: Layout, lie: str) -> None:
    world = World(gpu_kernels.program(), CASE, layout, SOON_NS)
    LIES[lie](world)
    victim = next(r for r in range(CASE.world) if world.ranks[r].launches.nonsense() is not None)
    check_does_nothing(world, victim)
