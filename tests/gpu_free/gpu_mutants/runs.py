"""Runs of the kernels on simulated GPUs, small ones, each with what makes some mistakes show."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import ptx
from cases import Case
from gpu_lies import LIES
from gpu_programs import Batch, free_running, hooks, plain
from gpu_world import SEND, TIMEOUT_NS, Layout, Network, World
from late_programs import (
    BAD_CHOICE,
    FAILED,
    HAS_BAD_CHOICE,
    NONSENSE,
    THEIR_VALUE,
    announced_before_heard,
    deferred,
    far_hooks,
    late_combines,
    one_slot_again,
    rows_are_read,
    watch,
)
from ptx import Program
from shrink_programs import goes_on, others_have_heard, rows_are_lost

ONE_BLOCK, TWO_TEAMS, BLOCKS = (1, 4), (1, 8), (3, 4)


@dataclass(frozen=True)
class Run:
    program: Callable[[World], None]
    case: Case
    layouts: tuple[tuple[int, int], ...]  # blocks, warps; one after the other
    seeds: int = 3  # at least one for each layout
    may_fail: bool = False
    timeout_ns: int = TIMEOUT_NS
    shrink: bool = False
    network: Network | None = None

    def worlds(self, program: Program) -> Iterable[World]:
        for seed in range(self.seeds):
            blocks, warps = self.layouts[seed % len(self.layouts)]
            layout = Layout(blocks, warps, seed)
            yield World(program, self.case, layout, self.timeout_ns, self.shrink, self.network)

    def complaint(self, program: Program) -> str:
        """What was wrong; nothing: nothing was."""
        for world in self.worlds(program):
            try:
                self.program(world)
            except (ptx.Race, ptx.Hang, ptx.Fault) as error:
                return f"{type(error).__name__}: {error}"
            except (AssertionError, IndexError, RuntimeError, ValueError) as error:
                return "; ".join([*said(world), f"{type(error).__name__}: {error}"])
            if not self.may_fail and (found := said(world)):
                return "; ".join(found)
        return ""


def said(world: World) -> list[str]:
    """What the kernels themselves have noticed."""
    found = []
    for rank, mine in enumerate(world.ranks):
        if (other := mine.launches.disagreement()) is not None:
            found.append(f"rank {rank} disagrees: {other}")
        elif mine.launches.report()[0] != 0:
            found.append(f"rank {rank} gave up: {mine.launches.report()}")
    return found


def across_the_wrap(world: World) -> None:
    """Epochs go round while ranks run ahead."""
    world.set_epochs(0xFFFFFFFD)
    free_running(world)


def bad_choice_is_told(world: World) -> None:
    """The host hears of a bad choice only when it can read which one."""
    batch = Batch(world, 0, 0)
    batch.fill()
    world.ranks[0].indices.put(batch.inputs[0].topk_idx.clone().fill_(world.case.experts))
    watch(world, 0, HAS_BAD_CHOICE, BAD_CHOICE, HAS_BAD_CHOICE)
    batch.dispatch(SEND)
    world.machine.run()


def bad_choices(world: World) -> None:
    """Of several bad choices the first is told."""
    batch = Batch(world, 0, 0)
    batch.fill()
    bad = batch.inputs[0].topk_idx.clone()
    bad[1:, 1:] = -7
    world.ranks[0].indices.put(bad)
    batch.dispatch(SEND)
    world.machine.run()
    assert world.ranks[0].launches.take_bad_choice()[1:3] == (1, 1)


def failure_is_told(world: World) -> None:
    """The host hears that a rank gave up only when it can read why."""
    batch = Batch(world, 0, 0)
    batch.fill()
    watch(world, 0, FAILED, THEIR_VALUE, NONSENSE)
    for rank in range(world.case.world):
        slot = 1 if rank == 1 else 0
        world.launch(rank, "dispatch", world.dispatch(rank, slot, SEND))
    world.machine.run()
    assert all(mine.launches.failed() for mine in world.ranks)


def cancelling(world: World) -> None:
    """Two answers of the same, with opposite weights: what one rounding leaves of them."""
    batch = Batch(world, 0, 0)
    for inputs in batch.inputs:
        inputs.topk_weights[:, 1] = -inputs.topk_weights[:, 0]
    for outputs in batch.outputs:
        for rows in outputs:
            rows[:] = 1.2578125
    batch.fill()
    batch.dispatch()
    world.machine.run()
    batch.write_outputs(0)
    batch.combine(0)
    world.machine.run()
    batch.check_combined()


FEW = {"world": 2, "tokens": 5, "max_tokens": 8}
MANY = {"world": 2, "tokens": 24, "max_tokens": 24, "rounds": 1}
LIED_TO = {"world": 3, "experts": 6, "tokens": (5, 6, 7), "max_tokens": 8}
THREE = {"world": 3, "experts": 6, "tokens": (4, 0, 7), "max_tokens": 8}
ALL = {"world": 3, "experts": 6, "tokens": (5, 6, 7), "max_tokens": 8}
SOON_NS = 10**7
ALONE = {"world": 2, "topk": 1, "tokens": (0, 1), "max_tokens": 1, "routing": "hot"}
ALL_LAYOUTS = (TWO_TEAMS, BLOCKS, ONE_BLOCK)
RUNS = {
    "few": Run(plain, Case(**FEW), ALL_LAYOUTS),
    "rounded": Run(plain, Case(**FEW, cast="rounded", values="wild", rounds=1), ALL_LAYOUTS),
    "tiny": Run(plain, Case(**FEW, values="tiny", rounds=1), ALL_LAYOUTS),
    "pulled": Run(plain, Case(**FEW, zero_copy=True), ALL_LAYOUTS),
    "four": Run(plain, Case(world=4, tokens=4, max_tokens=4, rounds=1), ALL_LAYOUTS),
    # More tokens than teams: halves, slots and messages are used again.
    "many": Run(plain, Case(**MANY), (ONE_BLOCK, TWO_TEAMS), 4),
    "many_bf16": Run(plain, Case(**MANY, cast="bf16"), (ONE_BLOCK, TWO_TEAMS), 4),
    "hot": Run(
        plain, Case(world=2, tokens=70, max_tokens=70, routing="hot", rounds=1), (ONE_BLOCK,), 2
    ),
    # More than a half of the ring, and more slots than a warp has.
    "wide": Run(
        plain,
        Case(world=2, tokens=4, max_tokens=4, hidden=16512, topk=2, cast="bf16", rounds=1),
        (ONE_BLOCK,),
        3,
    ),
    "hooks": Run(hooks, Case(**THREE), (ONE_BLOCK, (2, 4)), 4),
    "free": Run(free_running, Case(**THREE, rounds=4), ((2, 4), ONE_BLOCK), 6),
    "far_hooks": Run(far_hooks, Case(**THREE), (ONE_BLOCK, (2, 4)), 8),
    "deferred": Run(deferred, Case(**THREE), (ONE_BLOCK,), 2),
    "read": Run(rows_are_read, Case(**THREE, rounds=4), ((2, 4), ONE_BLOCK), 4),
    "read_bf16": Run(rows_are_read, Case(**THREE, rounds=4, cast="bf16"), (ONE_BLOCK,), 4),
    "late": Run(late_combines, Case(**THREE), (ONE_BLOCK, (2, 4)), 6),
    "late_pulled": Run(lambda world: late_combines(world, "pull"), Case(**THREE), (ONE_BLOCK,), 6),
    "late_mixed": Run(lambda world: late_combines(world, "mixed"), Case(**THREE), (ONE_BLOCK,), 6),
    "again": Run(one_slot_again, Case(**THREE), (ONE_BLOCK,), 4),
    "again_pulled": Run(lambda world: one_slot_again(world, True), Case(**THREE), (ONE_BLOCK,), 4),
    "announced": Run(announced_before_heard, Case(**ALONE), (ONE_BLOCK,), 60),
    "wrap": Run(across_the_wrap, Case(**THREE, rounds=5), (ONE_BLOCK,), 3),
    "top_16": Run(
        # Overflows, so that the order of a sum shows.
        plain,
        Case(world=2, tokens=2, max_tokens=2, experts=32, topk=16, rounds=1, values="huge"),
        (ONE_BLOCK,),
        1,
    ),
    "even": Run(plain, Case(world=2, tokens=32, max_tokens=32, rounds=1), (ONE_BLOCK,), 1),
    "cancelling": Run(cancelling, Case(**FEW, topk=2), (ONE_BLOCK,), 1),
    "padded": Run(plain, Case(**FEW, hidden=640, rounds=1), (ONE_BLOCK,), 2),
    "logfmt": Run(plain, Case(**MANY, logfmt=True), (ONE_BLOCK, TWO_TEAMS), 4),
    "logfmt_tiny": Run(plain, Case(**FEW, logfmt=True, values="tiny", rounds=1), (ONE_BLOCK,), 1),
    "logfmt_wild": Run(
        plain,
        Case(**FEW, logfmt=True, values="wild", hidden=384, rounds=1),
        (ONE_BLOCK,),
        1,
    ),
    "bad_choice": Run(bad_choice_is_told, Case(**FEW), (ONE_BLOCK,), 3),
    "choices": Run(bad_choices, Case(**FEW), (ONE_BLOCK,), 3),
    "failure": Run(failure_is_told, Case(**FEW), ALL_LAYOUTS, may_fail=True),
    **{
        f"lie_{name}": Run(
            LIES[name], Case(**LIED_TO), (ONE_BLOCK, (2, 4)), may_fail=True, timeout_ns=10**7
        )
        for name in (
            "count_of_my_expert",
            "count_of_another_expert",
            "epoch_of_rows",
            "dispatch_arrives",
            "another_source_arrives",
            "token_goes_back",
        )
    },
    # Peers behind a network
    "net": Run(plain, Case(**THREE), ((2, 4), ONE_BLOCK), 4, network=Network()),
    "net_nodes": Run(
        plain, Case(world=4, tokens=4, max_tokens=4), ((2, 4),), 2, network=Network(2)
    ),
    "net_hooks": Run(hooks, Case(**THREE), (ONE_BLOCK, (2, 4)), 4, network=Network()),
    "net_free": Run(
        free_running, Case(**THREE, rounds=4), ((2, 4), ONE_BLOCK), 4, network=Network()
    ),
    "net_late": Run(late_combines, Case(**THREE), (ONE_BLOCK, (2, 4)), 4, network=Network()),
    # Ranks that may be left out
    "shrinkable": Run(free_running, Case(**THREE, rounds=3), ((2, 4), ONE_BLOCK), 3, shrink=True),
    "lost": Run(rows_are_lost, Case(**ALL), (ONE_BLOCK,), 1, timeout_ns=SOON_NS, shrink=True),
    "lost_pulled": Run(
        rows_are_lost,
        Case(**ALL, zero_copy=True),
        (ONE_BLOCK,),
        1,
        timeout_ns=SOON_NS,
        shrink=True,
    ),
    "heard": Run(
        others_have_heard, Case(**ALL), (ONE_BLOCK,), 1, may_fail=True, timeout_ns=0, shrink=True
    ),
    "goes_on": Run(goes_on, Case(**ALL), (ONE_BLOCK,), 1, may_fail=True, shrink=True),
}
