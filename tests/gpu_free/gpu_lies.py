"""Ranks on simulated GPUs that leave nonsense in the heaps of others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from gpu_programs import Batch
from gpu_world import BOTH, FORMATS, RECEIVE, SEND, World
from torch import Tensor

COUNT, LABEL, EPOCH = 1, 2, 4  # csrc/ep/args.hpp: Nonsense; csrc/bindings/module.cpp
COUNTS, ROWS, CREDIT, OUTPUTS, LABELS = 1, 2, 3, 4, 7  # Phase
LIAR = 1
WORDS = {"counts": 0, "rows": 1, "combined": 2, "consumed": 4}  # csrc/ep/window.hpp: Desk
FAR = 7  # epochs


def desk(world: World, rank: int, source: int = LIAR) -> Tensor:
    """The words of a source in the heap of `rank`, as int64."""
    return world.ranks[rank].heap.view(
        world.window.desks.offset, torch.int64, world.case.world, 16
    )[source]


def announce(world: World, rank: int, counts: list[int], epoch: int = 1) -> None:
    """What the first dispatch of the liar, in slot 0, would tell `rank`."""
    c, window = world.case, world.window
    at = window.counts.offset + epoch % 2 * window.counts.slot_bytes + LIAR * window.max_experts * 2
    world.ranks[rank].heap.view(at, torch.int16, c.experts)[:] = torch.tensor(counts).short()
    greeting = (c.experts, c.max_tokens, c.hidden, c.topk, FORMATS[c.cast], 0)
    words = desk(world, rank).view(torch.int32)
    words[14 + epoch % 2 * 6 :][:6] = torch.tensor(greeting, dtype=torch.int32)
    desk(world, rank)[WORDS["counts"]] = epoch << 32


def others(world: World) -> list[int]:
    return [rank for rank in range(world.case.world) if rank != LIAR]


def start(world: World) -> Batch:
    batch = Batch(world, 0, 0)
    batch.fill()
    return batch


def told(world: World, rank: int) -> tuple[int, ...] | None:
    """What a rank has told of nonsense, after which it must have given up."""
    launches = world.ranks[rank].launches
    assert launches.failed(), f"unnoticed: rank {rank} went on"
    return launches.nonsense()


def check(found: tuple[int, ...] | None, expected: tuple[int, ...]) -> None:
    assert found == expected, f"unnoticed: {found} was told, not {expected}"


def _count(world: World, expert: int, number: int) -> None:
    """The liar announces more rows for an expert than it can have."""
    start(world)
    for rank in others(world):
        announce(world, rank, [number if e == expert else 0 for e in range(world.case.experts)])
    heaps = [world.ranks[rank].heap.area.tensor for rank in others(world)]
    recv = slice(world.window.recv.offset, None)
    before = [heap[recv].clone() for heap in heaps]
    for rank in others(world):
        world.launch(rank, "dispatch", world.dispatch(rank, 0))
    world.machine.run()
    # Those after the liar have to begin behind its rows; those before it only receive them.
    concerned = [rank for rank in others(world) if rank > LIAR or owner(world, expert) == rank]
    for rank in concerned:
        expected = (COUNT, LIAR, COUNTS, expert, number, world.case.max_tokens)
        check(told(world, rank), expected)
    if concerned == others(world):
        changed = [not torch.equal(a, heap[recv]) for a, heap in zip(before, heaps, strict=True)]
        assert not any(changed), "unnoticed: rows were written"


def owner(world: World, expert: int) -> int:
    return expert // world.shapes[0].num_local


def count_of_my_expert(world: World) -> None:
    _count(world, 0, world.case.max_tokens + 1)


def count_of_another_expert(world: World) -> None:
    _count(world, world.case.experts - 1, 65535)


def _epoch(world: World, word: str, kernel: str, halves: int) -> tuple[int, ...] | None:
    """A word of the liar in rank 0's heap is far ahead."""
    desk(world, 0)[WORDS[word]] = FAR << 32
    params = (
        world.dispatch(0, 0, halves) if kernel == "dispatch" else world.combine(0, (0, 0), halves)
    )
    world.launch(0, kernel, params)
    world.machine.run()
    return told(world, 0)


def epoch_of_counts(world: World) -> None:
    start(world)
    announce(world, 0, [0] * world.case.experts)
    for rank in others(world)[1:]:
        world.launch(rank, "dispatch", world.dispatch(rank, 0, SEND))
    check(_epoch(world, "counts", "dispatch", SEND), (EPOCH, LIAR, COUNTS, 1, FAR, 2))


def epoch_of_rows(world: World) -> None:
    start(world).dispatch(SEND)
    world.machine.run()
    check(_epoch(world, "rows", "dispatch", RECEIVE), (EPOCH, LIAR, ROWS, 1, FAR, 1))


def received(world: World) -> Batch:
    batch = start(world)
    batch.dispatch()
    world.machine.run()
    batch.check_received()
    batch.write_outputs(0)
    return batch


def epoch_of_outputs(world: World) -> None:
    received(world).combine(0, SEND)
    world.machine.run()
    word = desk(world, 0)[WORDS["combined"] + 1]
    word += (FAR - 1) << 32
    params = world.combine(0, (0, 0), RECEIVE)
    world.launch(0, "combine", params)
    world.machine.run()
    check(told(world, 0), (EPOCH, LIAR, OUTPUTS, 1, FAR, 1))


def epoch_of_credit(world: World) -> None:
    batch = received(world)
    batch.combine(0, BOTH)
    world.machine.run()
    for rank in others(world)[1:]:  # says what it has read
        world.launch(rank, "credit", world.combine(rank, (0, 0)))
    check(_epoch(world, "consumed", "combine", SEND), (EPOCH, LIAR, CREDIT, 1, FAR, 1))


def label(world: World, rank: int, local: int, row: int) -> Tensor:
    """Source, dispatch, token and choice of a row, as int16."""
    shape, window = world.shapes[rank], world.window
    at = window.recv.offset + shape.recv_offsets[1] + (shape.scale_words * 4 + 7) // 8 * 8
    at += (local * shape.max_rows + row) * shape.label_bytes
    return world.ranks[rank].heap.view(at, torch.int16, 4)


def a_row(world: World, batch: Batch, source: int = LIAR) -> tuple[int, int]:
    """A local expert of rank 0 and one of its rows from `source`."""
    for local, rows in enumerate(batch.expected[0]):
        begin, count = divmod(int(rows.layout_range[source]), 1 << 32)
        if count:
            return local, begin + count - 1
    raise AssertionError("the case sends nothing there")


def _label(world: World, field: int, value: int, phase: int) -> None:
    """A field of a row's label is another, when it arrives (ROWS) or later (LABELS)."""
    if phase == ROWS:
        batch = start(world)
        batch.dispatch(SEND)
        world.machine.run()
    else:
        batch = received(world)
    local, row = a_row(world, batch)
    at = label(world, 0, local, row)
    fields = at.tolist()
    at[field] = fields[field] = value
    kernel, params = (
        ("dispatch", world.dispatch(0, 0, RECEIVE))
        if phase == ROWS
        else ("combine", world.combine(0, (0, 0), SEND))
    )
    sums = world.ranks[0].heap.area.tensor[world.window.combine.offset :].clone()
    world.launch(0, kernel, params)
    world.machine.run()
    found = sum((value & 0xFFFF) << 16 * i for i, value in enumerate(fields))
    right = (LIAR, 1, world.case.max_tokens, world.case.topk)
    bound = sum(value << 16 * i for i, value in enumerate(right))
    check(told(world, 0), (LABEL, LIAR, phase, row, found, bound))
    desks = [desk(world, rank, 0) for rank in range(world.case.world)]
    sent = [int(mine[WORDS["combined"]] | mine[WORDS["combined"] + 1]) for mine in desks]
    assert not any(sent), "unnoticed: outputs were offered"
    after = world.ranks[0].heap.area.tensor[world.window.combine.offset :]
    assert phase == LABELS or torch.equal(sums, after)


LIES: dict[str, Callable[[World], None]] = {
    "count_of_my_expert": count_of_my_expert,
    "count_of_another_expert": count_of_another_expert,
    "epoch_of_counts": epoch_of_counts,
    "epoch_of_rows": epoch_of_rows,
    "epoch_of_outputs": epoch_of_outputs,
    "epoch_of_credit": epoch_of_credit,
    **{
        f"{name}_{when}": lambda world, field=field, value=value, phase=phase: _label(
            world, field, value, phase
        )
        for name, (field, value) in {
            "source": (0, 3),
            "dispatch": (1, 0),
            "token": (2, -1),
            "choice": (3, 4),
        }.items()
        for when, phase in {"arrives": ROWS, "goes_back": LABELS}.items()
    },
    "another_source_arrives": lambda world: _label(world, 0, 0, ROWS),
}
