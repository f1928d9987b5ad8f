"""What a dispatch hands to its combine: a tuple in DeepEP's order, with names."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

    from deep_ll.rounds import Round


class Lease:
    """Lives as long as the handle it belongs to; the buffer watches it to know what is still
    held.
    """

    __slots__ = ("__weakref__",)


class HandleFields(NamedTuple):
    """The five values of DeepEP's handle."""

    src_info: torch.Tensor
    layout_range: torch.Tensor
    num_max_dispatch_tokens_per_rank: int
    hidden: int
    num_experts: int


class Handle(HandleFields):
    """The handle of one dispatch.

    Fields:
        src_info: int32 [E_local, R*M], the token's index at its source, for each received row. A
            view of the heap.
        layout_range: int64 [E_local, R], `begin << 32 | count` of the rows that each rank sent to
            each expert.
        num_max_dispatch_tokens_per_rank, hidden, num_experts: the shape of the dispatch.
    """

    round: Round
    lease: Lease

    @classmethod
    def of(cls, round_: Round, *fields: torch.Tensor | int) -> Handle:
        """Makes the handle of `round_`, which watches it from then on."""
        handle = cls.again(round_, *fields)
        handle.lease = Lease()
        round_.watch(handle.lease)
        return handle

    @classmethod
    def again(cls, round_: Round, *fields: torch.Tensor | int) -> Handle:
        """Another handle of `round_`, which nobody watches."""
        handle = tuple.__new__(cls, fields)
        handle.round = round_
        return handle

    def __reduce__(self) -> tuple[type[HandleFields], tuple[torch.Tensor | int, ...]]:
        """What travels to another process, or is copied, are the five values."""
        return HandleFields, tuple(self)
