"""The kernels with peers behind a network, on simulated GPUs: by both routes over NVSHMEM.

The network is as bad as NVSHMEM's documentation allows (ptx/engine/network.hpp). Every byte that is
delivered is compared with the oracle.
"""

import gpu_kernels
import pytest
from cases import Case
from gpu_programs import PROGRAMS, plain
from gpu_world import Layout, Network, World

pytestmark = pytest.mark.skipif(gpu_kernels.NVCC is None, reason=gpu_kernels.WHY_NOT)

SMALL = {"world": 2, "tokens": 5, "max_tokens": 8}
FOUR = {"world": 4, "tokens": (0, 3, 8, 5), "max_tokens": 8}
CASES = [
    (Case(**SMALL), Network()),
    (Case(**SMALL, cast="bf16", hidden=200, zero_copy=True), Network()),
    (Case(**SMALL, logfmt=True, routing="holes"), Network(num_queues=1)),
    (Case(**FOUR, cast="ue8m0", hidden=640), Network(ranks_per_node=2)),
    (Case(**FOUR, zero_copy=True, experts=5), Network(ranks_per_node=3)),
    (Case(**FOUR, routing="none", rounds=2), Network()),
    # Rows wait in more than half of the memory for rows that come back: it is made larger.
    (Case(**SMALL, experts=4), Network()),
]


@pytest.mark.parametrize("route", gpu_kernels.ROUTES)
@pytest.mark.parametrize(("case", "network"), CASES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, case: Case, network: Network, route: str) -> None:
    program = gpu_kernels.program(route=route)
    PROGRAMS[name](World(program, case, Layout(2, 4, 1), network=network))


@pytest.mark.parametrize("route", gpu_kernels.ROUTES)
@pytest.mark.parametrize("epoch", [0x7FFFFFFE, 0xFFFFFFFD])
def test_epochs_go_round(epoch: int, route: str) -> None:
    world = World(
        gpu_kernels.program(route=route), Case(**SMALL, rounds=5), network=Network(num_queues=2)
    )
    world.set_epochs(epoch)
    PROGRAMS["free_running"](world)


@pytest.mark.parametrize("route", gpu_kernels.ROUTES)
def test_nobody_behind_the_network(route: str) -> None:
    """Other ranks may have such peers: all run the same kernels."""
    program = gpu_kernels.program(route=route)
    plain(World(program, Case(**SMALL), network=Network(ranks_per_node=2)))


@pytest.mark.parametrize("route", gpu_kernels.ROUTES)
def test_a_rank_that_does_not_come_is_named(route: str) -> None:
    world = World(
        gpu_kernels.program(route=route), Case(**SMALL), timeout_ns=10**7, network=Network()
    )
    world.launch(0, "dispatch", world.dispatch(0, 0))
    world.machine.run()
    outcome, phase, expected, missing = world.ranks[0].launches.report()
    assert (outcome, phase, expected) == (1, 1, 1)
    assert missing == [(1, 0)]
