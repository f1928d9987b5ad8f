"""The calls that two serving engines make of DeepEP's low-latency mode, in their order.

Written from what vLLM's DeepEP manager and prepare/finalize and SGLang's dispatcher do in 2026;
everything of theirs that DeepEP does not see is left out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from cases import CASTS, Case, Inputs
from deepep_ranks import as_bfloat16, run_experts
from torch import Tensor

NVL_BYTES = 1 << 30  # vLLM's VLLM_DEEPEP_BUFFER_SIZE_MB


class VllmManager:
    """Buffers by their arguments, for all layers; some models need several."""

    def __init__(self, deep_ep: ModuleType, group: Any, enable_shrink: bool = False) -> None:
        self._deep_ep, self._group, self._enable_shrink = deep_ep, group, enable_shrink
        self._buffers: dict[Any, Any] = {}
        self.mask: Tensor | None = None
        self._last_mask: Tensor | None = None

    def get_handle(self, case: Case) -> Any:
        num_bytes = self._deep_ep.Buffer.get_low_latency_rdma_size_hint(
            num_max_dispatch_tokens_per_rank=case.max_tokens,
            hidden=case.hidden,
            num_ranks=case.world,
            num_experts=case.experts,
        )
        kwargs: dict[str, Any] = {
            "group": self._group,
            "num_nvl_bytes": NVL_BYTES,
            "num_rdma_bytes": num_bytes,
            "low_latency_mode": True,
            "num_qps_per_rank": case.experts // case.world,
            "allow_nvlink_for_low_latency_mode": True,
            "allow_mnnvl": False,
            "explicitly_destroy": True,
            "enable_shrink": self._enable_shrink,
        }
        key = frozenset(kwargs.items())
        if key not in self._buffers:
            self._buffers[key] = self._deep_ep.Buffer(**kwargs)
        return self._buffers[key]

    def query_fault(self, buffer: Any) -> bool:
        """Whether the masks changed since they were cleaned; polled between steps."""
        if self.mask is None:
            self.mask = torch.zeros(buffer.group_size, dtype=torch.int32)
        buffer.low_latency_query_mask_buffer(self.mask)
        if self._last_mask is None:
            self._last_mask = torch.zeros_like(self.mask)
        return bool((self.mask != self._last_mask).any())

    def clean_buffers(self, buffer: Any) -> None:
        """Recovery: the memory is zeroed, masks are cleaned."""
        buffer.get_local_buffer_tensor(dtype=torch.int8, use_rdma_buffer=True).zero_()
        buffer.low_latency_clean_mask_buffer()
        self._last_mask = None

    def destroy(self) -> None:
        for buffer in self._buffers.values():
            buffer.destroy()
        self._buffers.clear()


class Microbatches:
    """Two threads that take turns; each leaves its receive hook to the other."""

    def __init__(self, num: int = 2) -> None:
        self._turns = [threading.Semaphore(0) for _ in range(num)]
        self._hooks: list[Callable[[], None] | None] = [None] * num
        self._ids: dict[int, int] = {}

    @property
    def current(self) -> int:
        return self._ids[threading.get_ident()]

    def register_recv_hook(self, hook: Callable[[], None]) -> None:
        self._hooks[(self.current + 1) % len(self._turns)] = hook

    def maybe_run_recv_hook(self) -> None:
        hook, self._hooks[self.current] = self._hooks[self.current], None
        if hook is not None:
            hook()

    def yield_(self) -> None:
        me = self.current
        self._turns[(me + 1) % len(self._turns)].release()
        self._turns[me].acquire()

    def run(self, works: list[Callable[[], None]]) -> None:
        errors: list[BaseException] = []

        def body(number: int) -> None:
            self._ids[threading.get_ident()] = number
            self._turns[number].acquire()
            try:
                works[number]()
                self.maybe_run_recv_hook()
            except BaseException as error:
                errors.append(error)
            finally:
                self._turns[(number + 1) % len(self._turns)].release()

        threads = [threading.Thread(target=body, args=(n,)) for n in range(len(works))]
        for thread in threads:
            thread.start()
        self._turns[0].release()
        for thread in threads:
            thread.join(50)
        if errors:
            raise errors[0]
        assert not any(thread.is_alive() for thread in threads)


class VllmLayer:
    """Prepare and finalize of one layer, around its experts."""

    def __init__(self, buffer: Any, case: Case, microbatches: Microbatches | None = None) -> None:
        self.buffer, self.case, self.microbatches = buffer, case, microbatches
        self.handles: list[Any] = [None, None]

    @property
    def _index(self) -> int:
        return 0 if self.microbatches is None else self.microbatches.current

    def prepare_async(self, mine: Inputs) -> tuple[Callable[[], None], Callable[[], Any]]:
        casts = CASTS[self.case.cast]
        expert_x, num_tokens, handle, _, hook = self.buffer.low_latency_dispatch(
            mine.x,
            mine.topk_idx,
            self.case.max_tokens,
            self.case.experts,
            use_fp8=casts["use_fp8"],
            round_scale=casts.get("round_scale", False),
            use_ue8m0=casts.get("use_ue8m0", False),
            async_finish=False,
            return_recv_hook=True,
        )
        self.handles[self._index] = handle
        return hook, lambda: (expert_x, num_tokens)

    def finalize(self, output: Tensor, outputs: Tensor, mine: Inputs, do_async: bool) -> Any:
        if self.microbatches is not None:
            self.microbatches.maybe_run_recv_hook()
        handle = self.handles[self._index]
        assert handle is not None
        _, _, hook = self.buffer.low_latency_combine(
            outputs,
            mine.topk_idx,
            mine.topk_weights,
            handle,
            async_finish=False,
            zero_copy=False,
            return_recv_hook=self.microbatches is not None or do_async,
            out=output,
        )
        return hook

    def forward(self, mine: Inputs, do_async: bool = False) -> Tensor:
        if self.microbatches is not None:
            self.microbatches.maybe_run_recv_hook()
        hook, receiver = self.prepare_async(mine)
        self._receive(hook)
        outputs = self._experts(*receiver())
        output = torch.full_like(mine.x, torch.nan)
        hook = self.finalize(output, outputs, mine, do_async)
        if hook is not None:
            self._receive(hook)
        return output

    def _receive(self, hook: Callable[[], None]) -> None:
        if self.microbatches is None:
            hook()
            return
        self.microbatches.register_recv_hook(hook)
        self.microbatches.yield_()

    def _experts(self, expert_x: Any, num_tokens: Tensor) -> Tensor:
        rows = as_bfloat16(expert_x)
        return run_experts(rows, num_tokens, self.buffer.rank * len(num_tokens))


class SglangBuffer:
    """The one buffer of a process, and which mode it was used in last."""

    def __init__(self, deep_ep: ModuleType, group: Any, case: Case) -> None:
        self._deep_ep, self._group, self._case = deep_ep, group, case
        self._buffer: Any = None
        self._was_normal = False
        self.num_cleaned = 0

    def get(self) -> Any:
        case, buffer_class = self._case, self._deep_ep.Buffer
        if self._was_normal and self._buffer is not None and self._buffer.low_latency_mode:
            self._buffer.clean_low_latency_buffer(case.max_tokens, case.hidden, case.experts)
            self.num_cleaned += 1
        self._was_normal = False
        if self._buffer is None:
            size = (case.max_tokens, case.hidden, self._group.size(), case.experts)
            self._buffer = buffer_class(
                self._group,
                0,
                max(buffer_class.get_low_latency_rdma_size_hint(*size), 0),
                low_latency_mode=True,
                num_qps_per_rank=max(buffer_class.num_sms, case.experts // case.world),
                allow_mnnvl=True,
            )
        return self._buffer

    def set_normal(self) -> None:
        """As its normal dispatcher does before a prefill."""
        self._was_normal = True


class SglangDispatcher:
    """dispatch_a, dispatch_b, combine_a, combine_b of the low-latency dispatcher."""

    def __init__(self, buffers: SglangBuffer, case: Case, return_recv_hook: bool) -> None:
        self._buffers, self._case, self._hooks = buffers, case, return_recv_hook
        self._handle: Any = None
        self._state: Any = None
        self._received: Any = None

    def dispatch_a(self, mine: Inputs) -> None:
        buffer = self._buffers.get()
        topk_ids = mine.topk_idx.to(torch.int64)
        casts = dict(CASTS[self._case.cast])
        recv_x, counts, self._handle, event, hook = self._buffers.get().low_latency_dispatch(
            mine.x,
            topk_ids,
            self._case.max_tokens,
            self._case.experts,
            use_fp8=casts.pop("use_fp8"),
            async_finish=not self._hooks,
            return_recv_hook=self._hooks,
            **casts,
        )
        expected_m = mine.x.shape[0] * buffer.group_size * topk_ids.shape[1] + self._case.experts
        self._received = recv_x, counts, expected_m // self._case.experts
        self._state = event, hook, topk_ids

    def dispatch_b(self) -> Any:
        event, hook, _ = self._state
        hook() if self._hooks else event.current_stream_wait()
        return self._received

    def combine_a(self, mine: Inputs, outputs: Tensor) -> None:
        _, _, topk_ids = self._state
        combined, event, hook = self._buffers.get().low_latency_combine(
            x=outputs,
            topk_idx=topk_ids,
            topk_weights=mine.topk_weights,
            handle=self._handle,
            async_finish=not self._hooks,
            return_recv_hook=self._hooks,
        )
        self._handle = self._received = None
        self._state = combined, event, hook

    def combine_b(self) -> Tensor:
        combined, event, hook = self._state
        hook() if self._hooks else event.current_stream_wait()
        return combined
