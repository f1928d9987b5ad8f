"""What the contestants take, what there is, and so who may be resident together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.contestants import FLOORS, LINKED, PRODUCT
from benchmarks.workload import Shape

RANK_BYTES = 45 << 20  # a rank process beside its tensors
PAIR_BYTES = 1 << 20  # what two ranks with a link between them hold for it
USABLE = 0.9  # of what is free now

Groups = list[list[str]]
_PAIRS = FLOORS.items()


def available_bytes() -> int:
    """Free memory of the machine, or what is left of a cgroup's limit if that is less."""
    free = [_meminfo_available()]
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        folder = Path("/sys/fs/cgroup")
        try:
            free.append(int((folder / limit).read_text()) - int((folder / usage).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return min(free)


def needed_bytes(name: str, shape: Shape) -> int:
    """About what a contestant touches. Generous: too little memory would end processes."""
    choices = shape.ep * shape.tokens * shape.topk
    sent = shape.row_bytes + 4 * shape.num_scales
    answer = 2 * shape.hidden
    per_choice = {
        # two receive buffers and a copy to check; inboxes and combine buffers twice, the outputs
        PRODUCT: 3 * sent + 5 * answer,
        # combine buffers of its own instead; what waits to be sent is counted by pair
        LINKED: 3 * sent + 5 * answer,
        # rows; inboxes, private and shared outputs
        "floor": sent + 3 * answer,
        "floor_link": sent + answer,
    }
    # sent, received, packed, in flight; outputs, sent, received, in flight
    total = choices * per_choice.get(name, 4 * sent + 4 * answer)
    if name == LINKED or (name == PRODUCT and shape.is_split):
        total += shape.ep**2 * PAIR_BYTES
    return total + (0 if name in FLOORS.values() else shape.ep * RANK_BYTES)


def inputs_bytes(shape: Shape) -> int:
    """The tokens of all ranks: as they are, as they are sent, and combined."""
    return shape.ep * shape.tokens * (4 * shape.hidden + shape.row_bytes)


def residency(names: Sequence[str], shape: Shape, free: int) -> Groups | None:
    """Who is measured in turn with whom: all, if they fit; None if not even one at a time fits."""
    room = int(free * USABLE) - inputs_bytes(shape)
    ours = [name for name in names if name in (PRODUCT, LINKED, *FLOORS.values())]
    pairs = [[name for name in ours if name in pair] for pair in _PAIRS]
    pairs = [pair for pair in pairs if pair]
    others = [[name] for name in names if name not in ours]
    choices: list[Groups] = [[list(names)], [ours, *others], [*pairs, *others]]
    choices.append([[name] for name in names])
    for groups in choices:
        if all(sum(needed_bytes(name, shape) for name in group) <= room for group in groups):
            return groups
    return None


def fit(names: Sequence[str], shape: Shape, free: int) -> tuple[Shape, Groups]:
    """The shape with as many of its tokens as fit (halved until they do), and the groups."""
    while True:
        groups = residency(names, shape, free)
        if groups is not None or shape.tokens == 1:
            return shape, groups or [[name] for name in names]
        shape = replace(shape, tokens=shape.tokens // 2)


def _meminfo_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, value = line.split(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise OSError("/proc/meminfo has no MemAvailable")
