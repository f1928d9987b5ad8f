"""How large a buffer must be, that all ranks agree on it, and that this host has the memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deep_ll import _native, checks
from deep_ll.errors import ArgumentError, PeerError
from deep_ll.plan import expected_bytes
from deep_ll.runtime import machine, memory
from deep_ll.runtime.paths import foresee_linked

if TYPE_CHECKING:
    from deep_ll.runtime.group import Group
    from deep_ll.runtime.paths import Wish

_BF16, _FP8 = 0, 1


@dataclass(frozen=True)
class Request:
    """What a caller asked of the constructor: bytes, or the sizes they follow from."""

    num_bytes: int
    max_tokens: int | None
    hidden: int | None
    num_experts: int | None
    max_topk: int
    enable_shrink: bool = False

    @property
    def sizes(self) -> tuple[int, int, int] | None:
        """Tokens per rank, hidden, experts; None if bytes were given instead."""
        given = (self.max_tokens, self.hidden, self.num_experts)
        if all(size is None for size in given):
            return None
        if self.max_tokens is None or self.hidden is None or self.num_experts is None:
            raise ArgumentError(
                f"max_tokens_per_rank={self.max_tokens}, hidden={self.hidden}, "
                f"num_experts={self.num_experts}: "
                "give all three, or num_rdma_bytes alone"
            )
        return self.max_tokens, self.hidden, self.num_experts


def heap_bytes(max_tokens: int, hidden: int, num_experts: int, num_ranks: int) -> int:
    """Bytes of one rank's heap that hold any dispatch and combine of this shape."""
    checks.exchange_sizes(max_tokens, hidden, num_experts, num_ranks, 1, fp8=False)
    return _shape(max_tokens, hidden, num_experts, num_ranks, 1, _BF16).heap_bytes


@dataclass(frozen=True)
class _Place:
    """What a rank says of where it is."""

    wish: Wish
    host: str = field(default_factory=machine.host_name)
    free: int = field(default_factory=lambda: memory.available_bytes())


def settle(group: Group, request: Request, wish: Wish, on_host: bool) -> tuple[int, int | None]:
    """The heap's bytes, and what this rank is expected to touch of them and beside them (None: no
    shape known yet). Collective.

    Raises:
        ArgumentError: nothing that works was asked for, here or on another rank.
        PeerError: ranks asked for different things.
        HeapMemoryError: the ranks of this host would not fit.
    """
    sizes = request.sizes
    problem, num_bytes, expected = "", request.num_bytes, None
    try:
        if sizes is not None:
            num_bytes = max(num_bytes, heap_bytes(*sizes, group.size))
            expected = _expected(sizes, group.size, request.max_topk, 0)
        elif num_bytes <= 0:
            problem = (
                f"num_rdma_bytes is {num_bytes}: give get_low_latency_rdma_size_hint(...), "
                f"or the three sizes"
            )
    except ArgumentError as error:
        problem = str(error)
    asked = (num_bytes, sizes, request.max_topk, request.enable_shrink)
    answers = group.all_gather((problem, asked, _Place(wish)))
    _agree(group, [theirs for _, theirs, _ in answers], [problem for problem, *_ in answers])
    if expected is None or sizes is None or not on_host:
        return num_bytes, expected
    places = [place for *_, place in answers]
    linked = foresee_linked([place.host for place in places], [place.wish for place in places])
    by_linked = {n: _expected(sizes, group.size, request.max_topk, n) for n in set(linked)}
    _check_hosts(places, [by_linked[n] for n in linked], num_bytes)
    return num_bytes, by_linked[linked[group.rank]]


def _check_hosts(places: list[_Place], expected: list[int], num_bytes: int) -> None:
    """All ranks look at all hosts, so that they come to the same verdict."""
    for host in sorted({place.host for place in places}):
        ranks = [rank for rank, place in enumerate(places) if place.host == host]
        free = min(places[rank].free for rank in ranks)
        memory.check_fits(len(ranks), max(expected[rank] for rank in ranks), free, num_bytes)


def _shape(
    max_tokens: int, hidden: int, num_experts: int, num_ranks: int, num_topk: int, fmt: int
) -> _native.Shape:
    return _native.Shape(
        num_ranks=num_ranks,
        rank=0,
        num_experts=num_experts,
        max_tokens=max_tokens,
        hidden=hidden,
        num_topk=num_topk,
        format=fmt,
    )


def _expected(sizes: tuple[int, int, int], num_ranks: int, max_topk: int, num_linked: int) -> int:
    """The larger of FP8 and BF16 dispatch."""
    max_tokens, hidden, num_experts = sizes
    if not 1 <= max_topk <= _native.MAX_TOPK:
        raise ArgumentError(f"max_topk is {max_topk}: it must be from 1 to {_native.MAX_TOPK}")
    num_topk = min(max_topk, num_experts)
    checks.exchange_sizes(max_tokens, hidden, num_experts, num_ranks, num_topk, fp8=False)
    formats = (_BF16, _FP8) if hidden % checks.GROUP == 0 else (_BF16,)
    return max(
        expected_bytes(_shape(max_tokens, hidden, num_experts, num_ranks, num_topk, f), num_linked)
        for f in formats
    )


def _agree(
    group: Group,
    asked: list[tuple[int, tuple[int, int, int] | None, int, bool]],
    problems: list[str],
) -> None:
    if problems[group.rank]:
        raise ArgumentError(problems[group.rank])
    elsewhere = next((rank for rank, problem in enumerate(problems) if problem), None)
    if elsewhere is not None:
        raise ArgumentError(f"rank {elsewhere} cannot make its buffer: {problems[elsewhere]}")
    other = next((rank for rank, theirs in enumerate(asked) if theirs != asked[group.rank]), None)
    if other is None:
        return
    names = (
        "heap bytes",
        "(max_tokens_per_rank, hidden, num_experts)",
        "max_topk",
        "enable_shrink",
    )
    differs = [
        f"{n} {a} there and {b} here"
        for n, a, b in zip(names, asked[other], asked[group.rank], strict=True)
        if a != b
    ]
    raise PeerError(
        f"rank {other} makes another buffer: {'; '.join(differs)}; pass the same on all ranks"
    )
