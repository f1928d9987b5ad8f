"""The kernels for GPUs, executed as PTX on simulated GPUs; schedules are random, races reported.

Every byte that they deliver is compared with the oracle, which the CPU's kernels match too.
"""

import gpu_kernels
import pytest
from cases import Case
from gpu_programs import PROGRAMS, Batch, plain
from gpu_world import Layout, World

pytestmark = pytest.mark.skipif(gpu_kernels.NVCC is None, reason=gpu_kernels.WHY_NOT)

SMALL = {"world": 2, "tokens": 5, "max_tokens": 8}
CASES = [
    Case(**SMALL),
    Case(**SMALL, cast="bf16", hidden=200, zero_copy=True),
    Case(**SMALL, cast="bf16", hidden=8),
    Case(**SMALL, cast="ue8m0", hidden=640, idx="int32"),
    Case(**SMALL, cast="rounded", zero_copy=True),
    Case(**SMALL, cast="fp8", hidden=128, topk=1, routing="hot"),
    Case(**SMALL, values="wild", routing="holes"),
    Case(**SMALL, values="huge", cast="rounded"),
    Case(**SMALL, values="tiny"),
    Case(**SMALL, values="zeros", cast="ue8m0"),
    Case(world=2, tokens=3, max_tokens=4, experts=64, topk=32),
    Case(world=2, tokens=3, max_tokens=4, experts=64, topk=16, values="huge"),
    Case(world=2, tokens=32, max_tokens=32, rounds=2),  # a run of choices for each warp
    Case(world=2, tokens=2, max_tokens=2, hidden=16512, topk=2, rounds=2),  # over half a ring
    Case(**SMALL, logfmt=True),
    Case(**SMALL, logfmt=True, cast="bf16", values="wild", routing="holes", hidden=384),
    Case(**SMALL, logfmt=True, cast="ue8m0", values="tiny", hidden=640),
    Case(world=2, tokens=2, max_tokens=2, hidden=16512, topk=2, logfmt=True, rounds=2),
    Case(world=2, tokens=3, max_tokens=4, experts=64, topk=11, logfmt=True, values="huge"),
    Case(world=1, tokens=8, max_tokens=8),
    Case(world=3, experts=9, tokens=(0, 7, 3), max_tokens=8, routing="holes"),
    Case(world=4, tokens=(0, 3, 8, 5), max_tokens=8),
    Case(world=4, experts=5, tokens=(4, 0, 3, 2), max_tokens=4),  # the last rank has no expert
    Case(world=3, experts=2, topk=2, tokens=3, max_tokens=4, zero_copy=True, cast="bf16"),
    Case(world=4, tokens=4, max_tokens=4, routing="none"),
    Case(world=4, tokens=4, max_tokens=4, zero_copy=True, cast="bf16"),
    Case(world=2, tokens=70, max_tokens=70, routing="hot", rounds=2),  # more than 64 rows an expert
]
LAYOUTS = [Layout(1, 4, 1), Layout(3, 4, 2), Layout(2, 8, 3)]
START_EPOCHS = [0xFFFF, 0x7FFFFFFE, 0xFFFFFFFD, 0xFFFFFFFE]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str, case: Case) -> None:
    layouts = LAYOUTS if case.hidden < 8192 else LAYOUTS[:2]
    for layout in layouts:
        PROGRAMS[name](World(gpu_kernels.program(), case, layout))


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[6], CASES[14], CASES[15]], ids=str)
def test_other_architectures(arch: str, name: str, case: Case) -> None:
    PROGRAMS[name](World(gpu_kernels.program(arch), case))


@pytest.mark.parametrize("cast", ["fp8", "bf16"])
@pytest.mark.parametrize("zero_copy", [False, True])
def test_known_row_size(cast: str, zero_copy: bool) -> None:
    case = Case(
        world=2, tokens=3, max_tokens=4, hidden=7168, topk=8, cast=cast, zero_copy=zero_copy
    )
    for layout in (Layout(2, 4, 1), Layout(1, 16, 2)):
        plain(World(gpu_kernels.program(hidden=7168), case, layout))


@pytest.mark.parametrize("epoch", START_EPOCHS)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("zero_copy", [False, True])
def test_epochs_go_round(name: str, epoch: int, zero_copy: bool) -> None:
    world = World(gpu_kernels.program(), Case(**SMALL, rounds=5, zero_copy=zero_copy))
    world.set_epochs(epoch)
    PROGRAMS[name](world)


def test_slot_that_was_unused_for_long() -> None:
    """The epoch of its last use seems to lie ahead."""
    world = World(gpu_kernels.program(), Case(**SMALL))
    world.set_epochs(0x80000005)
    for rank in world.ranks:
        rank.state.tensor[16:32].zero_()
    plain(world)


@pytest.mark.parametrize("resident", [1, 2])
def test_no_block_is_needed_that_has_not_started(resident: int) -> None:
    """All blocks of a launch must be there; other ranks' need not."""
    world = World(gpu_kernels.program(), Case(**SMALL), Layout(blocks=resident))
    world.machine.resident_blocks = resident
    plain(world)


@pytest.mark.parametrize("seed", range(12))
def test_many_schedules(seed: int) -> None:
    case = Case(world=3, experts=6, tokens=(4, 0, 7), max_tokens=8, rounds=2, seed=seed)
    for name in ("hooks", "free_running"):
        PROGRAMS[name](World(gpu_kernels.program(), case, Layout(2, 4, 100 + seed)))


def test_results_do_not_depend_on_the_schedule() -> None:
    case = Case(world=2, tokens=8, max_tokens=8, rounds=1)
    seen = set()
    for seed in range(5):
        world = World(gpu_kernels.program(), case, Layout(seed=seed))
        batch = Batch(world, 0, 0)
        batch.fill()
        batch.dispatch()
        world.machine.run()
        seen.add(bytes(world.received(0, 0)[0].src_info.numpy().tobytes()))
    assert len(seen) == 1
