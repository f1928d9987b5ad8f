"""What the bytes of a buffer are for, before any of them is touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deep_ll import _native
from deep_ll.runtime.cuda.heap import GpuHeap
from deep_ll.runtime.memory import mib
from deep_ll.runtime.paths import count_linked

if TYPE_CHECKING:
    from deep_ll._native import Object, Shape, Window
    from deep_ll.runtime.cuda.nvshmem_settings import Setting
    from deep_ll.runtime.heap import AnyHeap

_PAGE = 4096


@dataclass(frozen=True)
class Part:
    """A part of the heap."""

    name: str
    offset: int
    num_bytes: int
    meaning: str


@dataclass(frozen=True)
class Plan:
    """One rank's heap: its parts without holes, and what of it will be touched. `print(plan)` shows
    a table.

    Attributes:
        parts: by offset.
        num_bytes: their sum; on CPUs reserved, not occupied: only touched pages cost memory.
        expected_bytes: touched under uniform routing with all tokens, with what a link needs beside
            the heap; None while no shape is known.
        worst_bytes: touched if every row is used, of the heap and beside it.
        num_local_ranks: ranks on this host, which touch as much each.
        on_gpu: in device memory, all of it occupied.
        settings: environment variables that NVSHMEM was started with; empty without it.
    """

    parts: tuple[Part, ...]
    num_bytes: int
    expected_bytes: int | None
    worst_bytes: int
    num_local_ranks: int
    on_gpu: bool = False
    settings: tuple[Setting, ...] = ()

    def __str__(self) -> str:
        rows = [("offset", "bytes", "part", "what for")]
        rows += [(f"{p.offset:#x}", f"{p.num_bytes:,}", p.name, p.meaning) for p in self.parts]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = [
            f"{a:>{widths[0]}}  {b:>{widths[1]}}  {c:<{widths[2]}}  {d}" for a, b, c, d in rows
        ]
        ranks = f"{self.num_local_ranks} ranks on this host"
        if self.on_gpu:
            lines.append(f"occupies {mib(self.num_bytes)} of device memory a rank, {ranks}")
            return "\n".join([*lines, *_setting_lines(self.settings)])
        expected = (
            "unknown before the first dispatch"
            if self.expected_bytes is None
            else mib(self.expected_bytes)
        )
        lines.append(
            f"reserved {mib(self.num_bytes)} a rank, {ranks}; "
            f"touched: expected {expected}, at worst {mib(self.worst_bytes)} a rank"
        )
        return "\n".join(lines)


def _setting_lines(settings: tuple[Setting, ...]) -> list[str]:
    """What NVSHMEM was started with: name, value, who set it, why."""
    if not settings:
        return []
    texts = [(f"{s.name}={s.value}", "by you" if s.by_user else "by deep_ll") for s in settings]
    width = max(len(text) for text, _ in texts)
    whys = [
        f"{text:<{width}}  {who:<10}  {s.why}"
        for (text, who), s in zip(texts, settings, strict=True)
    ]
    return ["NVSHMEM was started with", *whys]


def expected_bytes(shape: Shape, num_linked: int = 0) -> int:
    """What a rank touches if all ranks send all their tokens and routing is uniform: two rounds are
    held at once. `num_linked`: peers behind a link.

    As many rows come back in BF16 as are sent. As many arrive at a rank with its share of the
    experts; where ranks do not divide them, at most ranks it is a little more.
    """
    sent = shape.num_topk * shape.max_tokens
    arriving = -(-sent * shape.num_ranks * shape.experts_per_rank // shape.num_experts)
    row_bytes = shape.row_bytes + shape.label_bytes + 4 * shape.scale_words + 4
    own = 2 * (arriving * row_bytes + sent * 2 * shape.hidden) + 16 * _PAGE
    return own + _link_bytes(shape, num_linked) if num_linked else own


def _link_bytes(shape: Shape, num_linked: int) -> int:
    """What a link adds: messages, and outputs for zero-copy combines, which others cannot read in
    the heap.
    """
    messages = num_linked * _native.MESSAGES_PER_PEER * _native.MESSAGE_BYTES
    outputs = 2 * shape.num_topk * shape.max_tokens * 2 * shape.hidden
    return messages + outputs


def _worst_bytes(window: Window, heap: AnyHeap) -> int:
    """Every row of the heap and of zero-copy outputs; for each linked peer its messages, and what
    stands for the signals of its heap."""
    num_linked = count_linked(heap.paths)
    if not num_linked:
        return window.num_bytes
    messages = _native.MESSAGES_PER_PEER * _native.MESSAGE_BYTES
    signals = window.num_bytes - sum(
        part.slots * part.slot_bytes for part in (window.recv, window.combine)
    )
    return window.num_bytes + 2 * window.combine.slot_bytes + num_linked * (messages + signals)


def plan_of(window: Window, heap: AnyHeap, expected: int | None) -> Plan:
    """The plan of a heap."""
    parts = [
        Part(
            "header",
            0,
            window.desks.offset,
            "nonce of the hand-over, doorbell of the sleeping rank",
        )
    ]

    def add(name: str, part: Object, meaning: str) -> None:
        slots = [""] if part.slots == 1 else [f"[{slot}]" for slot in range(part.slots)]
        for slot, suffix in enumerate(slots):
            parts.append(
                Part(name + suffix, part.offset + slot * part.slot_bytes, part.slot_bytes, meaning)
            )

    add("desks", window.desks, "each source's signal words and greetings")
    add("counts", window.counts, "rows that each source sends to each expert")
    far = isinstance(heap, GpuHeap) and heap.network is not None
    add(
        "notes",
        window.notes,
        "from here on: what has landed of each source"
        if far
        else "who has left this rank out (enable_shrink)",
    )
    add("views", window.views, "whom each source has left out (enable_shrink)")
    add("grants", window.grants, "where this rank's rows go at each expert (enable_shrink)")
    add("recv", window.recv, "received rows, their labels, scales, src_info")
    add("combine", window.combine, "rows that come back, or experts' outputs read in place")
    if not isinstance(heap, GpuHeap):
        whole, worst = _filled(parts, window.num_bytes), _worst_bytes(window, heap)
        return Plan(whole, window.num_bytes, expected, worst, heap.num_local_ranks)
    num_bytes = window.num_bytes
    if heap.network is not None:
        bytes_of_slot, num_bytes = window.combine.slot_bytes, heap.memory.numel()
        for slot in (0, 1):
            at = window.outputs(slot)
            parts.append(Part(f"outputs[{slot}]", at, bytes_of_slot, "outputs, until sent"))
    whole = _filled(parts, num_bytes)
    return Plan(whole, num_bytes, expected, num_bytes, heap.num_local_ranks, True, heap.settings)


def _filled(parts: list[Part], num_bytes: int) -> tuple[Part, ...]:
    """Names the bytes between parts, so that the sum is the whole."""
    whole: list[Part] = []
    at = 0
    for part in [*parts, Part("", num_bytes, 0, "")]:
        if part.offset > at:
            whole.append(Part("(padding)", at, part.offset - at, "alignment"))
        whole.append(part)
        at = part.offset + part.num_bytes
    return tuple(whole[:-1])
