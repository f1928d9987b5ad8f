"""deep_ll's Buffer under DeepEP's rules, where the two differ. docs/deepep.md lists them."""

from __future__ import annotations

import functools
from collections import deque
from typing import TYPE_CHECKING

from deep_ll import buffer
from deep_ll.compat.deep_ep import environment
from deep_ll.errors import ArgumentError, NormalModeError, OrderError
from deep_ll.handle import Handle
from deep_ll.rounds import NUM_SLOTS

if TYPE_CHECKING:
    from typing import TypeAlias

    import torch

    from deep_ll.event import EventOverlap
    from deep_ll.order import Received
    from deep_ll.rounds import Hook, Round

    # src_info, layout_range, num_max_dispatch_tokens_per_rank, hidden, num_experts
    PlainHandle: TypeAlias = tuple[torch.Tensor, torch.Tensor, int, int, int]

_NUM_FIELDS = 5


class Buffer(buffer.Buffer):
    """DeepEP's Buffer. Arguments, results and errors are those of deep_ll.Buffer, except:

    * `low_latency_mode` is False unless given, and must be True.
    * The environment is written as DeepEP writes it.
    * Hooks may be used whatever memory is mapped, without a warning.
    * Handles are plain tuples, and copies of them are as good. Who drops one, or never combines
      it, stops nobody: the second next dispatch takes its memory.
    * `destroy()` asserts that the buffer was made with `explicitly_destroy=True`.

    deep_ll's own keywords (`timeout_s`, `device`, ...) are taken as well.
    """

    def __init__(
        self,
        group: object = None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = False,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool | None = None,
        allow_mnnvl: bool = False,
        *later: object,
        **keywords: object,
    ) -> None:
        self._session = None
        self.explicitly_destroy = False
        if not low_latency_mode:
            raise NormalModeError(
                "deep_ep.Buffer without low_latency_mode=True is for DeepEP's normal mode, which "
                "deep_ll does not have: pass low_latency_mode=True (vLLM: the all2all backend "
                "deepep_low_latency; SGLang: --deepep-mode low_latency), or use DeepEP itself"
            )
        if num_qps_per_rank < 1:
            raise ArgumentError(f"num_qps_per_rank is {num_qps_per_rank}: it must be 1 or more")
        nvlink = allow_nvlink_for_low_latency_mode
        environment.write(num_qps_per_rank, nvlink, allow_mnnvl)
        sizes = (num_nvl_bytes, num_rdma_bytes, True, num_qps_per_rank)
        super().__init__(group, *sizes, nvlink, allow_mnnvl, *later, **keywords)  # type: ignore[arg-type]
        self._hooks_checked = True
        self._recent: deque[tuple[torch.Tensor, Round]] = deque(maxlen=NUM_SLOTS)

    @functools.wraps(buffer.Buffer.low_latency_dispatch)
    def low_latency_dispatch(  # type: ignore[override]
        self, *args: object, **keywords: object
    ) -> tuple[Received, torch.Tensor, PlainHandle, EventOverlap, Hook | None]:
        received = super().low_latency_dispatch(*args, **keywords)  # type: ignore[arg-type]
        recv_x, recv_count, handle, event, hook = received
        # Only the round is kept: whether the caller still holds the handle is not to matter. A
        # tensor object of its own tells this dispatch from the others, in every copy of the tuple.
        layout_range = handle.layout_range.detach()
        self._recent.append((layout_range, handle.round))
        plain = (handle.src_info, layout_range, *handle[2:])
        return recv_x, recv_count, plain, event, hook

    @functools.wraps(buffer.Buffer.low_latency_combine)
    def low_latency_combine(  # type: ignore[override]
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: PlainHandle,
        *args: object,
        **keywords: object,
    ) -> tuple[torch.Tensor, EventOverlap, Hook | None]:
        found = self._find(handle)
        given = (x, topk_idx, topk_weights, found, *args)
        return super().low_latency_combine(*given, **keywords)  # type: ignore[arg-type]

    @functools.wraps(buffer.Buffer.get_next_low_latency_combine_buffer)
    def get_next_low_latency_combine_buffer(  # type: ignore[override]
        self, handle: PlainHandle, **keywords: object
    ) -> torch.Tensor:
        found = self._find(handle)
        return super().get_next_low_latency_combine_buffer(found, **keywords)  # type: ignore[arg-type]

    def destroy(self) -> None:
        """Lets go of the memory. Collective on GPUs.

        Raises:
            AssertionError: the buffer was not made with `explicitly_destroy=True`.
        """
        if not self.explicitly_destroy:
            raise AssertionError(
                "destroy() needs a buffer that was made with explicitly_destroy=True; others are "
                "destroyed when they are dropped"
            )
        super().destroy()

    def __enter__(self) -> Buffer:
        self.explicitly_destroy = True  # what `with` is for
        return self

    def _find(self, handle: object) -> Handle:
        """The handle behind a plain tuple, or a copy of it."""
        if not isinstance(handle, tuple | list) or len(handle) != _NUM_FIELDS:
            raise ArgumentError(
                f"handle is a {type(handle).__name__}: pass the tuple of {_NUM_FIELDS} that "
                "low_latency_dispatch returned"
            )
        for layout_range, this in self._recent:
            if layout_range is handle[1]:
                return Handle.again(this, *handle)
        raise OrderError(
            "this handle is not of the last two dispatches of this buffer: its results were "
            "overwritten, or its tensors were copied (a pickled handle has the five values, but "
            "cannot be combined with)"
        )
