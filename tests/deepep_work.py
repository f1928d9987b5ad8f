"""What the ranks of test_deepep_calls.py do, in the manner of two serving engines."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from cases import CASTS, Case
from deepep_engines import (
    Microbatches,
    SglangBuffer,
    SglangDispatcher,
    VllmLayer,
    VllmManager,
)
from deepep_ranks import (
    Step,
    as_bfloat16,
    assert_combined,
    deep_ep_installed,
    run_experts,
    step_of,
)

NUM_STEPS = 5  # odd: layers do not always meet the same half of the memory


def vllm_steps(group: Any, cases: list[Case], do_async: bool) -> int:
    """Layers of models with different shapes, over cached buffers; how many buffers there were."""
    with deep_ep_installed() as deep_ep, warnings.catch_warnings():
        warnings.simplefilter("error")
        manager = VllmManager(deep_ep, group)
        buffers = {}
        for step_idx in range(NUM_STEPS):
            for number, case in enumerate(cases):
                buffer = manager.get_handle(case)
                buffers[id(buffer)] = buffer
                step = step_of(case, step_idx, buffer.rank)
                output = VllmLayer(buffer, case).forward(step.mine, do_async)
                assert_combined(output, step, f"model {number}, step {step_idx}")
        manager.destroy()
    return len(buffers)


def vllm_microbatches(group: Any, cases: list[Case], num_layers: int) -> None:
    """Two threads take turns, each with a batch of its own; hooks are run by the other."""
    with deep_ep_installed() as deep_ep:
        manager = VllmManager(deep_ep, group)
        turns = Microbatches()
        buffer = manager.get_handle(cases[0])
        layers = [VllmLayer(buffer, cases[0], turns) for _ in range(num_layers)]
        steps = [[step_of(c, i, buffer.rank) for i in range(num_layers)] for c in cases]
        outputs: list[list[torch.Tensor]] = [[], []]

        def batch(number: int) -> None:
            for layer, step in zip(layers, steps[number], strict=True):
                outputs[number].append(layer.forward(step.mine))

        turns.run([lambda: batch(0), lambda: batch(1)])
        for number, batch_steps in enumerate(steps):
            for layer_idx, step in enumerate(batch_steps):
                assert_combined(outputs[number][layer_idx], step, f"{number}, layer {layer_idx}")
        manager.destroy()


def vllm_after_a_failed_step(group: Any, case: Case) -> None:
    """Experts fail on all ranks; layers keep handles that are never combined."""
    with deep_ep_installed() as deep_ep:
        manager = VllmManager(deep_ep, group)
        buffer = manager.get_handle(case)
        layers = [VllmLayer(buffer, case) for _ in range(3)]
        for layer in layers:
            hook, _ = layer.prepare_async(step_of(case, 0, buffer.rank).mine)
            hook()
        for step_idx in range(NUM_STEPS):
            step = step_of(case, step_idx, buffer.rank)
            output = layers[step_idx % len(layers)].forward(step.mine)
            assert_combined(output, step, f"step {step_idx}")
        manager.destroy()


def vllm_masks(group: Any, case: Case, stalled: int, timeout_s: float) -> list[list[int]]:
    """One rank misses a step; the others notice by polling and go on, then all make new buffers.

    Returns:
        The masks that each poll with a fault saw.
    """
    rank = dist.get_rank(group)
    steps = [step_of(case, step_idx, rank) for step_idx in range(4)]
    without = [step_of(case, step_idx, rank, gone=(stalled,)) for step_idx in (4, 5)]
    last = step_of(case, 6, rank)
    seen = []
    with deep_ep_installed(timeout_s) as deep_ep:
        manager = VllmManager(deep_ep, group, enable_shrink=True)
        buffer = manager.get_handle(case)
        layer = VllmLayer(buffer, case)
        for step_idx, step in enumerate(steps):
            dist.barrier(group)  # who is late for other reasons must not look like a fault
            assert_combined(layer.forward(step.mine), step, f"step {step_idx}")
            assert not manager.query_fault(buffer)
            if step_idx == 1:  # as after a fault elsewhere: memory and masks are cleaned
                dist.barrier(group)
                manager.clean_buffers(buffer)
        dist.barrier(group)
        for step in without if rank != stalled else ():
            assert_combined(layer.forward(step.mine), step, "without a rank")
            assert manager.query_fault(buffer)
            seen.append(manager.mask.tolist())
        dist.barrier(group)
        manager.destroy()
        manager = VllmManager(deep_ep, group, enable_shrink=True)
        layer = VllmLayer(manager.get_handle(case), case)
        assert_combined(layer.forward(last.mine), last, "new buffers")
        assert not manager.query_fault(layer.buffer)
        manager.destroy()
    return seen


def sglang_steps(group: Any, case: Case, return_recv_hook: bool) -> int:
    """Decode steps with a prefill between some; how often the buffer was cleaned."""
    with deep_ep_installed() as deep_ep:
        buffers = SglangBuffer(deep_ep, group, case)
        dispatcher = SglangDispatcher(buffers, case, return_recv_hook)
        for step_idx in range(NUM_STEPS):
            if step_idx % 2:
                buffers.set_normal()
            step = step_of(case, step_idx, group.rank())
            dispatcher.dispatch_a(step.mine)
            combined = _rest(dispatcher, step, buffers)
            assert_combined(combined, step, f"step {step_idx}")
        return buffers.num_cleaned


def sglang_two_batches(group: Any, cases: list[Case], num_layers: int) -> None:
    """Two batches in turns, the second two stages behind the first."""
    with deep_ep_installed() as deep_ep:
        buffers = SglangBuffer(deep_ep, group, cases[0])
        batches = [
            _stages(SglangDispatcher(buffers, case, True), case, buffers, num_layers)
            for case in cases
        ]
        next(batches[0])
        next(batches[0])
        running = True
        while running:
            running = [next(batch, None) for batch in batches] != [None, None]


def _stages(
    dispatcher: SglangDispatcher, case: Case, buffers: SglangBuffer, num_layers: int
) -> Iterator[str]:
    """The stages of all layers of one batch, as DeepSeek's decode is cut."""
    for layer_idx in range(num_layers):
        step = step_of(case, layer_idx, buffers.get().rank)
        yield "attention"
        yield "gate"
        dispatcher.dispatch_a(step.mine)
        yield "shared experts"
        recv_x, counts, _ = dispatcher.dispatch_b()
        rows = as_bfloat16(recv_x)
        outputs = run_experts(rows, counts, buffers.get().rank * len(counts))
        dispatcher.combine_a(step.mine, outputs)
        yield "experts"
        assert_combined(dispatcher.combine_b(), step, f"layer {layer_idx}")
        yield "output"


def _rest(dispatcher: SglangDispatcher, step: Step, buffers: SglangBuffer) -> torch.Tensor:
    recv_x, counts, expected_m = dispatcher.dispatch_b()
    assert expected_m >= 1
    buffer = buffers.get()
    outputs = run_experts(as_bfloat16(recv_x), counts, buffer.rank * len(counts))
    dispatcher.combine_a(step.mine, outputs)
    return dispatcher.combine_b()


def both_pending(group: Any, cases: list[Case], first_received: int) -> None:
    """Two batches are dispatched, and combined, before either is received."""
    with deep_ep_installed() as deep_ep:
        buffer = VllmManager(deep_ep, group).get_handle(cases[0])
        order = [first_received, 1 - first_received]
        for step_idx in range(NUM_STEPS):
            steps = [step_of(case, step_idx, buffer.rank) for case in cases]
            sent = [VllmLayer(buffer, case) for case in cases]
            receipts = [layer.prepare_async(s.mine) for layer, s in zip(sent, steps, strict=True)]
            for number in order:
                receipts[number][0]()
            results = [torch.full_like(step.mine.x, torch.nan) for step in steps]
            hooks = []
            for number, layer in enumerate(sent):
                expert_x, counts = receipts[number][1]()
                rows = as_bfloat16(expert_x)
                outputs = run_experts(rows, counts, buffer.rank * len(counts))
                mine = steps[number].mine
                hooks.append(layer.finalize(results[number], outputs, mine, do_async=True))
            for hook in hooks:
                hook()
            for number, step in enumerate(steps):
                assert_combined(results[number], step, f"batch {number}, step {step_idx}")
        buffer.destroy()


def call_forms(group: Any, case: Case) -> None:
    """The same exchange with all by position, and with all by keyword."""
    casts = CASTS[case.cast]
    cast = (casts["use_fp8"], casts.get("round_scale", False), casts.get("use_ue8m0", False))
    with deep_ep_installed() as deep_ep:
        hint = deep_ep.Buffer.get_low_latency_rdma_size_hint(
            case.max_tokens, case.hidden, case.world, case.experts
        )
        buffer = deep_ep.Buffer(group, 0, hint, True, case.experts // case.world, True, False, True)
        step = step_of(case, 0, buffer.rank)
        x, topk_idx, weights = step.mine
        num_local = case.experts // case.world
        stats = torch.zeros(num_local, dtype=torch.int32)
        waits = torch.full((case.world,), -1, dtype=torch.int64)
        numbers = (case.max_tokens, case.experts)
        for by_keyword in (False, True):
            given = (x, topk_idx, *numbers, stats, waits, *cast, False, False)
            names = (
                "x topk_idx num_max_dispatch_tokens_per_rank num_experts "
                "cumulative_local_expert_recv_stats dispatch_wait_recv_cost_stats use_fp8 "
                "round_scale use_ue8m0 async_finish return_recv_hook"
            )
            recv_x, counts, handle, _, hook = _call(
                buffer.low_latency_dispatch, names, given, by_keyword
            )
            assert hook is None
            outputs = run_experts(as_bfloat16(recv_x), counts, buffer.rank * num_local)
            out = torch.full_like(x, torch.nan)
            given = (outputs, topk_idx, weights, handle, False, False, False, False, out, waits)
            names = (
                "x topk_idx topk_weights handle use_logfmt zero_copy async_finish "
                "return_recv_hook out combine_wait_recv_cost_stats"
            )
            combined, _, _ = _call(buffer.low_latency_combine, names, given, by_keyword)
            assert combined is out
            assert_combined(combined, step, f"by_keyword={by_keyword}")
        assert stats.tolist() == (2 * counts).tolist()
        assert waits[buffer.rank] == -1
        assert waits.max() > -1  # somebody was waited for, in four calls
        buffer.destroy()


def _call(fn: Any, names: str, given: tuple[Any, ...], by_keyword: bool) -> Any:
    if by_keyword:
        return fn(**dict(zip(names.split(), given, strict=True)))
    return fn(*given)
