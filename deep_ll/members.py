"""Which ranks of a buffer's group are left out: the mask that kernels read and write, and the calls
that show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from deep_ll import checks
from deep_ll.errors import ArgumentError
from deep_ll.runtime.store_group import StoreGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from deep_ll.open import AnySession

_PADDED = 16  # kernels read it in words


def mask_bytes(num_ranks: int) -> int:
    """How long a mask is."""
    return -(-num_ranks // _PADDED) * _PADDED


class Members:
    """Who is left out by one rank.

    Args:
        num_ranks, rank: of the group.
        mask: uint8 [mask_bytes(num_ranks)], zeros; 1 where a rank is left out. Kernels use it.
        on_return: told of ranks that are not left out any more.
    """

    def __init__(
        self,
        num_ranks: int,
        rank: int,
        mask: torch.Tensor,
        on_return: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._num_ranks, self._rank, self._mask, self._on_return = num_ranks, rank, mask, on_return
        self.address = mask.data_ptr()

    @property
    def masked(self) -> tuple[int, ...]:
        """Who is left out."""
        return tuple(self._mask.nonzero().view(-1).tolist())

    def update(self, rank: int, masked: bool) -> None:
        """Leaves a rank out, or no longer."""
        if not 0 <= rank < self._num_ranks:
            raise ArgumentError(
                f"rank_to_mask is {rank}: the ranks of this buffer are 0 to {self._num_ranks - 1}"
            )
        if rank == self._rank and masked:
            raise ArgumentError(f"rank_to_mask is {rank}, this rank: it cannot leave itself out")
        self._mask[rank] = int(masked)
        if not masked:
            self._on_return(rank)

    def query(self, status: torch.Tensor) -> None:
        """Writes 1 or 0 for each rank."""
        sizes = (self._num_ranks,)
        checks.tensor("mask_status", status, (torch.int32,), sizes, self._mask.device)
        status.copy_(self._mask[: self._num_ranks])

    def clean(self) -> None:
        """Leaves out nobody."""
        for rank in range(self._num_ranks):
            self.update(rank, masked=False)


class MaskCalls:
    """The calls of a Buffer about its mask. They are this rank's own, on a GPU in the order of the
    current stream."""

    def low_latency_update_mask_buffer(self, rank_to_mask: int, mask: bool = False) -> None:
        """Masks a rank, or takes it back.

        Who is masked is told so in the next dispatch, and raises PeerError. Taking back is for a
        rank that all others take back and that makes the same calls as they (docs/failures.md).

        Raises:
            ArgumentError: no such rank, or the buffer was made without `enable_shrink`.
        """
        self._members().update(rank_to_mask, mask)

    def low_latency_query_mask_buffer(self, mask_status: torch.Tensor) -> None:
        """Writes who is masked.

        Args:
            mask_status: int32 [num_ranks], becomes 1 for each masked rank, else 0.

        Raises:
            ArgumentError: another tensor, or the buffer was made without `enable_shrink`.
        """
        self._members().query(mask_status)

    def low_latency_clean_mask_buffer(self) -> None:
        """Takes all ranks back; see `low_latency_update_mask_buffer`.

        Raises:
            ArgumentError: the buffer was made without `enable_shrink`.
        """
        self._members().clean()

    def rejoin(self, rank: int, group: object = None, *, timeout_s: float | None = None) -> None:
        """Takes a rank that began anew back into this buffer. Collective among the ranks that are
        not masked, between two rounds; on CPUs. Handles of earlier dispatches cannot be combined
        any more.

        The new process meanwhile makes its buffer with the same arguments, over
        `StoreGroup(store, rank, size, rejoin=True)`. Results are right from the next call.

        Args:
            rank: which; it must be masked. A rank that was masked but lives destroys its buffer
                and makes a new one in the same way.
            group: where ranks meet, a `StoreGroup`. Default: the buffer's own. A buffer over a
                process group needs one over a store that the new process can reach as well, of
                the same name as there.
            timeout_s: how long others are waited for, seconds. Default: the group's.

        Raises:
            ArgumentError: there is no `StoreGroup`, or another one than this rank's.
            OrderError: the rank is not masked, an operation is not finished, or this buffer cannot
                take ranks back (on a GPU): then make a new one.
            PeerError: ranks have not made the same calls, the new heap has another size, or there
                is no path to it.
            PeerTimeout: the rank, or another, has not come; it is named. Nothing has changed.
        """
        session, own = self._usable(), getattr(self, "group", None)
        meeting = own if group is None else group
        if not isinstance(meeting, StoreGroup):
            raise ArgumentError(
                "rejoin needs a StoreGroup over a store that all ranks reach: make the buffer over "
                f"one, or pass it as group (this is a {type(meeting).__name__})"
            )
        here = (session.heap.rank, session.heap.num_ranks)
        if (meeting.rank, meeting.size) != here:
            raise ArgumentError(
                f"the group is for rank {meeting.rank} of {meeting.size}, this is {here[0]} of "
                f"{here[1]}"
            )
        if not 0 <= rank < meeting.size:
            raise ArgumentError(f"rank is {rank}: it must be from 0 to {meeting.size - 1}")
        session.rejoin(meeting, rank, meeting.timeout_s if timeout_s is None else timeout_s)

    def _members(self) -> Members:
        members = self._usable().members
        if members is None:
            raise ArgumentError(
                "this buffer has no mask of ranks: make it with enable_shrink=True on all ranks"
            )
        return members

    def _usable(self) -> AnySession:
        raise NotImplementedError
