"""Buffer: the symmetric memory of a group of ranks, and the low-latency calls over it."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from deep_ll import _native, arguments, checks, env, numbers, sizing
from deep_ll.errors import ArgumentError
from deep_ll.open import Options, open_session
from deep_ll.order import ASYNC, HOOK, NOW, When
from deep_ll.own_end import OwnEnd, Runtime
from deep_ll.runtime.cuda.heap import GpuHeap
from deep_ll.runtime.group import as_group
from deep_ll.runtime.paths import wish

if TYPE_CHECKING:
    from types import TracebackType

    from deep_ll.event import EventOverlap
    from deep_ll.handle import Handle
    from deep_ll.open import AnySession
    from deep_ll.order import Sent
    from deep_ll.rounds import Hook

topk_idx_t = torch.int64
"""DeepEP's name for the usual dtype of topk_idx; int32 is taken as well."""

# The usual ways to cast, by (use_fp8, round_scale, use_ue8m0); checks.formats refuses the others.
_FORMATS = {
    (False, False, False): 0,
    (True, False, False): 1,
    (True, True, False): 2,
    (True, True, True): 3,
}


class Buffer(OwnEnd):
    """Symmetric memory of a group of ranks and the expert-parallel calls over it. One thread at a
    time may use it.

    The constructor is collective. Arguments up to `comm` are DeepEP's, the others deep_ll's own.

    Args:
        group: a torch.distributed ProcessGroup (with gloo on CPUs; with gloo or nccl on GPUs, where
            nccl needs `torch.cuda.set_device` before), or a group of thread ranks
            (`deep_ll.testing.run_ranks`).
        num_nvl_bytes: taken and unused: the low-latency calls need no second buffer.
        num_rdma_bytes: bytes of this rank's heap, from `get_low_latency_rdma_size_hint`; the same
            on all ranks.
        low_latency_mode: must be True.
        num_qps_per_rank, allow_mnnvl, use_fabric: taken and unused.
        allow_nvlink_for_low_latency_mode: False is `allow_nvlink_traffic=False`. True, DeepEP's
            default, lets kernels load and store peers' memory whatever the environment says, hooks
            included. The opposite of `allow_nvlink_traffic` is an error.
        later: `explicitly_destroy, enable_shrink, comm` by position, or `use_fabric` and these:
            DeepEP's versions differ. If both can be meant, the former is, with a warning.
        explicitly_destroy: warn if the buffer is dropped without `destroy()`.
        enable_shrink: go on without ranks that fail (docs/failures.md): who does not come in time
            is masked, its tokens count as none, choices of its experts as -1, and later calls do
            not wait for it. Default: PeerTimeout is raised.
        comm: a communicator of mpi4py, if `group` is None.
        max_tokens_per_rank, hidden, num_experts: instead of `num_rdma_bytes`: the buffer sizes
            itself.
        max_topk: for the estimate of the memory that will be touched.
        timeout_s: how long a call waits for peers, seconds; 0: for ever. Default:
            DEEP_LL_TIMEOUT_S, 100.
        num_threads: threads of this rank. Default: DEEP_LL_NUM_THREADS, or cores / ranks on this
            host.
        device: where tensors are: "cpu", or "cuda", "cuda:1", ... Default: DEEP_LL_DEVICE, else the
            current GPU if torch has one (for thread ranks: the CPU).
        num_sms: blocks of each kernel on a GPU, one a multiprocessor. Default: DEEP_LL_NUM_SMS, 32.
        allow_pcie_p2p: let GPUs that only PCIe connects write into each other's memory.
        allow_nvlink_traffic: whether kernels load and store peers' memory themselves where they can
            (NVLink; on CPUs shared memory). False: all goes over the network. True cannot be
            combined with hooks. Default: as NVSHMEM_DISABLE_P2P says, else yes.
        row_major_scales: FP8 scales with strides (.., .., 1) instead of DeepEP's columns, which
            grouped GEMMs on GPUs want and processors do not: a dispatch is faster, and so is
            reading a row's scales.

    Attributes:
        rank, group_size, group, comm, num_nvl_bytes, num_rdma_bytes, num_qps_per_rank,
        low_latency_mode, explicitly_destroy, enable_shrink: as given.
        nvshmem_qp_depth: as DeepEP reads it from the environment; there are no queue pairs here.
        runtime: what callers ask of DeepEP's; None after `destroy()`.
        number: which buffer of this process it is, from 0; graphs of `deep_ll.ops` name it by that.

    Raises:
        ArgumentError: arguments that cannot work; sizes are checked on all ranks together.
        HeapMemoryError: the ranks of this host are expected to touch more memory than is free.
        GpuUnavailable: a GPU was asked for, and something that it needs is missing.
        LinkUnavailable: there is no path to some peers; it names them, the reason and the cure.
        OrderError: a CUDA graph is being captured.
        PeerError: ranks passed different sizes, or a rank's memory cannot be mapped here.
    """

    def __init__(
        self,
        group: object = None,
        num_nvl_bytes: int = 0,
        num_rdma_bytes: int = 0,
        low_latency_mode: bool = True,
        num_qps_per_rank: int = 24,
        allow_nvlink_for_low_latency_mode: bool | None = None,
        allow_mnnvl: bool = False,
        *later: object,
        use_fabric: bool | None = None,
        explicitly_destroy: bool | None = None,
        enable_shrink: bool | None = None,
        comm: object = None,
        max_tokens_per_rank: int | None = None,
        hidden: int | None = None,
        num_experts: int | None = None,
        max_topk: int = 8,
        timeout_s: float | None = None,
        num_threads: int | None = None,
        row_major_scales: bool = False,
        device: torch.device | str | None = None,
        num_sms: int | None = None,
        allow_pcie_p2p: bool = False,
        allow_nvlink_traffic: bool | None = None,
        **others: object,
    ) -> None:
        self._session = None
        self.runtime: Runtime | None = None
        self.explicitly_destroy = False
        arguments.refuse("Buffer", arguments.BUFFER, others)
        given = arguments.Late(use_fabric, explicitly_destroy, enable_shrink, comm)
        last = arguments.late(later, given)
        self.enable_shrink = bool(last.enable_shrink)
        traffic = arguments.nvlink(allow_nvlink_traffic, allow_nvlink_for_low_latency_mode)
        self._allow_p2p, self._hooks_checked = allow_nvlink_traffic, False
        if not low_latency_mode:
            raise ArgumentError("low_latency_mode=False: deep_ll has only the low-latency calls")
        settings = env.settings()
        timeout_s = settings.timeout_s if timeout_s is None else float(timeout_s)
        options = Options(
            timeout_s,
            num_threads,
            row_major_scales,
            num_sms,
            allow_pcie_p2p,
            traffic,
            self.enable_shrink,
        )
        options.check()
        ranks = as_group(group, last.comm)
        if ranks.size > _native.MAX_RANKS:
            raise ArgumentError(
                f"the group has {ranks.size} ranks: at most {_native.MAX_RANKS} are supported"
            )
        place = env.device(device, settings, in_process=ranks.in_process)
        sizes = (max_tokens_per_rank, hidden, num_experts)
        request = sizing.Request(num_rdma_bytes, *sizes, max_topk, self.enable_shrink)
        wanted = wish(traffic[0], settings.disable_p2p, settings.ranks_per_node, traffic[1])
        on_host = place.type == "cpu"
        self.num_rdma_bytes, expected = sizing.settle(ranks, request, wanted, on_host=on_host)
        self.group, self.comm = group, last.comm
        self.rank, self.group_size = ranks.rank, ranks.size
        self.low_latency_mode, self.nvshmem_qp_depth = True, settings.qp_depth
        self.num_nvl_bytes, self.num_qps_per_rank = num_nvl_bytes, num_qps_per_rank
        self.row_major_scales = row_major_scales
        self.number = numbers.number_of(self)
        num_bytes = self.num_rdma_bytes
        self._session = open_session(ranks, place, num_bytes, expected, settings, options, wanted)
        self._session.show(self.number, settings.trace)
        self.runtime, self._now = Runtime(self._session), When(NOW, timeout_s)
        self.explicitly_destroy = bool(last.explicitly_destroy)

    @staticmethod
    def get_low_latency_rdma_size_hint(
        num_max_dispatch_tokens_per_rank: int, hidden: int, num_ranks: int, num_experts: int
    ) -> int:
        """Bytes of `num_rdma_bytes` that hold any dispatch and combine of this shape, whatever
        top-k and format.

        Raises:
            ArgumentError: no buffer can hold such a shape; the message says which number is wrong.
        """
        return sizing.heap_bytes(num_max_dispatch_tokens_per_rank, hidden, num_experts, num_ranks)

    def low_latency_dispatch(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        num_max_dispatch_tokens_per_rank: int,
        num_experts: int,
        cumulative_local_expert_recv_stats: torch.Tensor | None = None,
        dispatch_wait_recv_cost_stats: torch.Tensor | None = None,
        use_fp8: bool = True,
        round_scale: bool = False,
        use_ue8m0: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        *,
        timeout_s: float | None = None,
        **others: object,
    ) -> Sent:
        """Sends each token to the ranks of the experts it chose. Collective; all ranks pass the
        same numbers and flags.

        With R ranks, M = `num_max_dispatch_tokens_per_rank`. Expert e lives on rank
        e // ceil(`num_experts` / R); E_local is how many live on this rank: where R does not divide
        `num_experts` the last ranks have fewer, even none.

        Args:
            x: bfloat16 [num_tokens, hidden], contiguous; 0 <= num_tokens <= M, different on each
                rank if you like.
            topk_idx: int64 or int32 [num_tokens, num_topk], experts by global number, each at most
                once a token; -1: none.
            num_max_dispatch_tokens_per_rank: M, 1 to 4096.
            num_experts: of all ranks, at most 8192.
            cumulative_local_expert_recv_stats: int32 [E_local], grows by the received counts.
            dispatch_wait_recv_cost_stats: int64 [R], grows by the nanoseconds that this call waited
                for each rank: for its counts and for its rows (docs/observing.md). DeepEP's are
                cycles of a GPU.
            use_fp8: send e4m3 with a scale for 128 channels (hidden % 128 == 0), else bfloat16
                (hidden % 8 == 0).
            round_scale: scales are powers of two.
            use_ue8m0: only their exponents, four in an int32; needs `round_scale`.
            async_finish: receive in `event.current_stream_wait()`.
            return_recv_hook: receive when the returned hook is called.
            timeout_s: how long each wait of this call lasts, seconds, 0: for ever; default: the
                buffer's.

        Returns:
            recv_x: bfloat16 [E_local, R*M, hidden], or (float8_e4m3fn of that shape, scales).
                Scales are float32 [E_local, R*M, hidden/128] (or int32 [E_local, R*M,
                ceil(hidden/512)] for ue8m0) with token-contiguous strides; value = fp8 * scale.
                Rows of an expert are sorted by (source rank, token).
            recv_count: int32 [E_local], rows of each local expert; rows beyond are undefined.
            handle: for `low_latency_combine`.
            event: see `async_finish`.
            hook: see `return_recv_hook`, else None.

        All of these tensors belong to the buffer. They may be read until the second next dispatch
        is called; clone what you want to keep.

        Raises:
            ArgumentError: a tensor or a number that cannot work; nothing was moved.
            OrderError: results or hooks of earlier rounds are in the way, or the buffer is
                destroyed.
            PeerError: ranks passed different numbers.
            PeerTimeout: a rank did not come.
        """
        session = self._usable()
        if others:
            arguments.refuse("low_latency_dispatch", arguments.DISPATCH, others)
        when = self._when(session, async_finish, return_recv_hook, timeout_s)
        if dispatch_wait_recv_cost_stats is not None:
            name = "dispatch_wait_recv_cost_stats"
            when = self._measured(session, when, name, dispatch_wait_recv_cost_stats)
        fmt = _FORMATS.get((use_fp8, round_scale, use_ue8m0))
        if fmt is None:
            fmt = checks.formats(use_fp8, round_scale, use_ue8m0)
        max_tokens = num_max_dispatch_tokens_per_rank
        tokens = checks.dispatched(x, topk_idx, max_tokens, session.device)
        kind = session.kinds.of((max_tokens, tokens.hidden, num_experts, tokens.num_topk, fmt))
        stats = cumulative_local_expert_recv_stats
        if stats is not None:
            name = "cumulative_local_expert_recv_stats"
            checks.tensor(name, stats, (torch.int32,), (kind.num_local,), session.device)
        return session.dispatch(kind, tokens, stats, when)

    def low_latency_combine(
        self,
        x: torch.Tensor,
        topk_idx: torch.Tensor,
        topk_weights: torch.Tensor,
        handle: Handle,
        use_logfmt: bool = False,
        zero_copy: bool = False,
        async_finish: bool = False,
        return_recv_hook: bool = False,
        out: torch.Tensor | None = None,
        combine_wait_recv_cost_stats: torch.Tensor | None = None,
        *,
        timeout_s: float | None = None,
        **others: object,
    ) -> tuple[torch.Tensor, EventOverlap, Hook | None]:
        """Sends the experts' outputs back and adds them up with weights. Collective.

        Args:
            x: bfloat16 [E_local, R*M, hidden], contiguous: the output for each received row; other
                rows are not read.
            topk_idx: as it was dispatched; entries may have become -1, their outputs are left out.
            topk_weights: float32 [num_tokens, num_topk].
            handle: of the dispatch that is answered. It may be combined with more than once.
            use_logfmt: outputs travel in 10 bits a value instead of 16, by logarithms with a scale
                for each 128 channels (docs/logfmt.md has the error); hidden % 128 == 0. All ranks
                must agree. Not with `zero_copy`.
            zero_copy: the outputs were written into `get_next_low_latency_combine_buffer(handle)`;
                peers read them there and `x` is not read. All ranks must agree.
            async_finish, return_recv_hook: as in `low_latency_dispatch`.
            out: bfloat16 [num_tokens, hidden] for the result; default: a new tensor.
            combine_wait_recv_cost_stats: int64 [R], as in `low_latency_dispatch`: for the memory of
                rows and for the outputs.
            timeout_s: as in `low_latency_dispatch`.

        Returns:
            combined_x: bfloat16 [num_tokens, hidden], `out` if it was given: the sum over choices
                != -1 of weight * output, in float32, in the order of the choices.
            event, hook: as in `low_latency_dispatch`.

        Raises:
            ArgumentError, OrderError, PeerError, PeerTimeout: as in `low_latency_dispatch`.
        """
        session = self._usable()
        if others:
            arguments.refuse("low_latency_combine", arguments.COMBINE, others)
        when = self._when(session, async_finish, return_recv_hook, timeout_s)
        if combine_wait_recv_cost_stats is not None:
            name = "combine_wait_recv_cost_stats"
            when = self._measured(session, when, name, combine_wait_recv_cost_stats)
        this = session.live_round(handle)
        kind = this.kind
        num_topk, hidden = kind.sizes.num_topk, kind.sizes.hidden
        if use_logfmt:
            checks.logfmt(hidden, zero_copy)
        if out is None:
            out_shape = (this.num_tokens, hidden)
            out = torch.empty(out_shape, dtype=torch.bfloat16, device=session.device)
        x_shape = (kind.num_local, kind.max_rows, hidden)
        tensors = (x, topk_idx, topk_weights, out)
        checks.combined(tensors, (this.num_tokens, num_topk), x_shape, session.device)
        source, choice = None if zero_copy else x, (topk_idx, topk_weights)
        return out, *session.combine(this, source, choice, out, when, use_logfmt)

    def get_next_low_latency_combine_buffer(
        self, handle: Handle, *, timeout_s: float | None = None
    ) -> torch.Tensor:
        """Where the experts write for the next combine with `zero_copy=True`.

        Returns at once if this rank knows from the last dispatch that all peers have read what an
        earlier combine left there; else it waits until they say so in their next call.

        Args:
            handle: of the dispatch that will be answered.
            timeout_s: as in `low_latency_dispatch`.

        Returns:
            bfloat16 [E_local, R*M, hidden], a view of the heap; contiguous. It belongs to the next
            combine alone.

        Raises:
            OrderError: the handle is too old, or an earlier combine with the same memory is not
                finished.
            PeerTimeout: a peer still reads what an earlier combine left there.
        """
        session = self._usable()
        timeout_s = self._when(session, False, False, timeout_s).timeout_s
        return session.take_combine_buffer(session.live_round(handle), timeout_s)

    def clean_low_latency_buffer(
        self,
        num_max_dispatch_tokens_per_rank: int,
        hidden: int,
        num_experts: int,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """For callers of DeepEP: there is nothing to clean, signals carry epochs. Checks that the
        shape fits. With `enable_shrink` it is collective, as in DeepEP: ranks meet, and who does
        not come is masked.

        Raises:
            ArgumentError: the buffer is too small for this shape.
            PeerError: others have masked this rank.
        """
        sizes = (num_max_dispatch_tokens_per_rank, hidden, num_experts, 1, 0)
        session = self._usable()
        kind = session.kinds.of(sizes)
        if session.members is not None:
            session.meet(kind, self._when(session, False, False, timeout_s).timeout_s)

    def destroy(self) -> None:
        """Lets go of the memory; may be called again.

        On CPUs it is not collective, and tensors that look into the heap stay readable. On GPUs
        all ranks must call it, and such tensors are invalid afterwards; leaving a `with` by an
        exception does not call it there.
        """
        session, self._session, self.runtime = self._session, None, None
        if session is not None:
            session.close()

    def __enter__(self) -> Buffer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # On GPUs destroy() is collective, and peers need not have failed: it would wait for them.
        session = self._session
        if error is None or session is None or not isinstance(session.heap, GpuHeap):
            self.destroy()

    def __del__(self) -> None:
        if (
            getattr(self, "explicitly_destroy", False)
            and getattr(self, "_session", None) is not None
        ):
            warnings.warn(
                "a Buffer with explicitly_destroy=True was dropped: call destroy()",
                ResourceWarning,
                stacklevel=2,
            )

    def _when(
        self,
        session: AnySession,
        async_finish: bool,
        return_recv_hook: bool,
        timeout_s: float | None,
    ) -> When:
        if not (async_finish or return_recv_hook or timeout_s is not None):
            return self._now
        checks.modes(async_finish, return_recv_hook)
        timeout_s = self._now.timeout_s if timeout_s is None else float(timeout_s)
        checks.timeout(timeout_s)
        if return_recv_hook and not self._hooks_checked:
            checks.hooks(session.heap.paths, self._allow_p2p)
            self._hooks_checked = True
        return When(ASYNC if async_finish else HOOK if return_recv_hook else NOW, timeout_s)

    def _measured(self, session: AnySession, when: When, name: str, waits: torch.Tensor) -> When:
        arguments.refuse_flag(name, waits)
        checks.tensor(name, waits, (torch.int64,), (self.group_size,), session.device)
        return when._replace(waits=waits)
