"""What the ranks of test_ops.py do: the operators alone, compiled and exported."""

import os
from dataclasses import replace
from typing import Any

import torch
import torch._dynamo.testing
import torch._inductor.config
from cases import CASTS, Case, Inputs, make_inputs
from exchange import expect, make_buffer
from torch import Tensor

import deep_ll
from deep_ll import ops, reference
from deep_ll.testing.compare import assert_same_bits

PAIR = Case(world=2, experts=4, topk=2, hidden=256, max_tokens=8, cast="bf16")
BATCHES = [(5, 3), (8, 2), (2, 7), (0, 0), (6, 1), (3, 8)]  # tokens of the ranks, call by call


class Scaler(torch.nn.Module):
    """A layer whose experts multiply by their number, so that the oracle can say its bits."""

    factors: Tensor

    def __init__(self, buffer: deep_ll.Buffer, case: Case) -> None:
        super().__init__()
        num_local = case.experts // case.world
        first = 1 + buffer.rank * num_local
        factors = torch.arange(first, first + num_local, dtype=torch.bfloat16)
        self.register_buffer("factors", factors[:, None, None])
        self.exchange, self.case = buffer, case

    def forward(self, x: Tensor, topk_idx: Tensor, weights: Tensor) -> tuple[Any, ...]:
        case = self.case
        received, count, ticket = ops.dispatch(
            self.exchange, x, topk_idx, case.max_tokens, case.experts, **CASTS[case.cast]
        )
        if isinstance(received, tuple):
            # The values without their scales: any function of the rows will do.
            rows, scales = received
        else:
            rows, scales = received, count
        outputs = rows.bfloat16() * self.factors
        return ops.combine(self.exchange, outputs, topk_idx, weights, ticket), rows, scales, count


def check(case: Case, rank: int, inputs: list[Inputs], results: tuple[Tensor, ...]) -> None:
    """A layer's results against the oracle."""
    received = expect(case, inputs)
    combined, rows, scales, count = results
    for local, want in enumerate(received[rank]):
        num_rows = len(want.src_info)
        assert int(count[local]) == num_rows
        assert_same_bits(rows[local, :num_rows], want.rows, f"rows of local expert {local}")
        if want.scales is not None:
            assert_same_bits(scales[local, :num_rows], want.scales, f"scales of {local}")
    numbered = [
        list(enumerate(experts, 1 + r * len(experts))) for r, experts in enumerate(received)
    ]
    outputs = [[e.rows.bfloat16() * float(n) for n, e in experts] for experts in numbered]
    mine = inputs[rank]
    expected = reference.combine(rank, outputs, received, mine.topk_idx, mine.topk_weights)
    assert_same_bits(combined, expected, "combined")


def backend_of(name: str) -> str:
    """Inductor without C++ kernels: its own graph, scheduler and reuse of memory, in a second."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch._dynamo.reset()
    torch._inductor.config.fallback_by_default = name == "inductor without kernels"
    return name.split()[0]


@torch.no_grad()
def compiled_layer(group: Any, backend: str, cast: str, row_major: bool) -> int:
    """Batches of all sizes through a compiled layer; the number of its graphs."""
    case = replace(PAIR, cast=cast)
    with make_buffer(group, case, row_major_scales=row_major, timeout_s=50) as buffer:
        layer = Scaler(buffer, case)
        counter = torch._dynamo.testing.CompileCounterWithBackend(backend_of(backend))
        compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend=counter)
        for step, tokens in enumerate(BATCHES):
            inputs = make_inputs(replace(case, tokens=tokens), step)
            check(case, buffer.rank, inputs, compiled(*inputs[buffer.rank]))
            check(case, buffer.rank, inputs, layer(*inputs[buffer.rank]))
        return int(counter.frame_count)


@torch.no_grad()
def exported_layer(group: Any) -> str:
    with make_buffer(group, PAIR, timeout_s=50) as buffer:
        layer = Scaler(buffer, PAIR)
        inputs = make_inputs(replace(PAIR, tokens=(5, 4)), 0)
        tokens = torch.export.Dim("tokens", min=2, max=PAIR.max_tokens)
        program = torch.export.export(
            layer, tuple(inputs[buffer.rank]), dynamic_shapes=[{0: tokens}] * 3, strict=False
        )
        for step, batch in enumerate([(2, 8), (7, 3), (4, 4)]):
            inputs = make_inputs(replace(PAIR, tokens=batch), step)
            check(PAIR, buffer.rank, inputs, program.module()(*inputs[buffer.rank]))
        return str(program.graph)


@torch.no_grad()
def unused_results(group: Any, backend: str) -> list[int]:
    """Three calls with one input, of which the graph needs the last: tickets of a later call."""
    with make_buffer(group, PAIR, timeout_s=50) as buffer:
        mine = make_inputs(replace(PAIR, tokens=4), 0)[buffer.rank]

        def thrice(x: Tensor, topk_idx: Tensor) -> Tensor:
            for _ in range(2):
                ops.dispatch(buffer, x, topk_idx, PAIR.max_tokens, PAIR.experts, use_fp8=False)
            return ops.dispatch(buffer, x, topk_idx, PAIR.max_tokens, PAIR.experts, use_fp8=False)[
                2
            ]

        compiled = torch.compile(thrice, fullgraph=True, backend=backend_of(backend))
        return [int(compiled(mine.x, mine.topk_idx)) for _ in range(2)]


@torch.no_grad()
def two_rounds(group: Any, backend: str) -> None:
    """Two micro-batches: two dispatches, then two combines, results of which meet only at the end.
    The first one's rows are read after both have been overwritten in the buffer."""
    with make_buffer(group, PAIR, timeout_s=50) as buffer:
        layer = Scaler(buffer, PAIR)
        sizes = (PAIR.max_tokens, PAIR.experts)

        def overlapped(first: Inputs, second: Inputs) -> list[tuple[Tensor, ...]]:
            sent = [
                ops.dispatch(buffer, each.x, each.topk_idx, *sizes, use_fp8=False)
                for each in (first, second)
            ]
            return [
                (
                    ops.combine(
                        buffer, rows * layer.factors, each.topk_idx, each.topk_weights, ticket
                    ),
                    rows + 0,
                    count,
                    count,
                )
                for each, (rows, count, ticket) in zip((first, second), sent, strict=True)
            ]

        compiled = torch.compile(overlapped, fullgraph=True, backend=backend_of(backend))
        batches = [make_inputs(replace(PAIR, tokens=(6, 4)), step) for step in range(4)]
        pairs = list(zip(batches[::2], batches[1::2], strict=True))
        kept = [compiled(*(inputs[buffer.rank] for inputs in pair)) for pair in pairs]
        for pair, results in zip(pairs, kept, strict=True):
            for inputs, result in zip(pair, results, strict=True):
                check(PAIR, buffer.rank, inputs, result)


def opcheck(group: Any, cast: str) -> list[str]:
    """torch's own checks; every row is used, since they compare whole tensors."""
    case = replace(PAIR, topk=PAIR.experts, cast=cast, tokens=PAIR.max_tokens)
    with make_buffer(group, case, timeout_s=50) as buffer:
        x, topk_idx, weights = make_inputs(case, 0)[buffer.rank]
        x = x.round() * 64  # so that the tolerance for tickets, which grow by 1, hides no row
        flags = [CASTS[cast].get(name, False) for name in ("use_fp8", "round_scale", "use_ue8m0")]
        sizes = _sizes(case)
        args = (buffer.number, x, topk_idx, sizes, [*flags, buffer.row_major_scales])
        # No tolerance can be given where FP8 is compared: test_compiled_layer compares that.
        utils = ["test_schema", "test_autograd_registration", "test_faketensor"]
        if cast == "bf16":
            utils.append("test_aot_dispatch_dynamic")
        options = {"test_utils": utils, "rtol": 1e-9, "atol": 1.0}
        passed = torch.library.opcheck(torch.ops.deep_ll.dispatch.default, args, **options)
        received, _, ticket = ops.dispatch(buffer, x, topk_idx, *sizes[:2], use_fp8=False)
        args = (buffer.number, received, topk_idx, weights, ticket)
        passed |= torch.library.opcheck(torch.ops.deep_ll.combine.default, args)
        return sorted(name for name, outcome in passed.items() if outcome == "SUCCESS")


def refused(group: Any) -> list[str]:
    """What goes wrong when a graph runs, and that the buffer works afterwards."""
    with make_buffer(group, PAIR, timeout_s=50) as buffer:
        messages = [_too_many(buffer), _too_old(buffer)]
    inputs = make_inputs(replace(PAIR, tokens=(5, 4)), 0)[buffer.rank]
    call = torch.ops.deep_ll.dispatch.default
    args = (inputs.x, inputs.topk_idx, _sizes(PAIR), [False] * 4)
    number = buffer.number
    messages.append(_message(call, number, *args))
    del buffer
    torch._dynamo.reset()  # compiled layers hold it
    return [*messages, _message(call, number, *args)]


@torch.no_grad()
def _too_many(buffer: deep_ll.Buffer) -> str:
    layer = Scaler(buffer, PAIR)
    compiled = torch.compile(layer, fullgraph=True, dynamic=True, backend="aot_eager")
    too_many = make_inputs(replace(PAIR, tokens=PAIR.max_tokens + 1), 0)[buffer.rank]
    message = _message(compiled, *too_many)
    inputs = make_inputs(replace(PAIR, tokens=(5, 4)), 0)
    check(PAIR, buffer.rank, inputs, compiled(*inputs[buffer.rank]))
    return message


def _too_old(buffer: deep_ll.Buffer) -> str:
    x, topk_idx, weights = make_inputs(replace(PAIR, tokens=(5, 4)), 0)[buffer.rank]
    sizes = (PAIR.max_tokens, PAIR.experts)
    sent = [ops.dispatch(buffer, x, topk_idx, *sizes, use_fp8=False) for _ in range(3)]
    messages = [
        _message(ops.combine, buffer, rows, topk_idx, weights, ticket) for rows, _, ticket in sent
    ]
    assert messages[1:] == ["nothing raised"] * 2
    return messages[0]


def _sizes(case: Case) -> list[int]:
    """A dispatch's arguments of that name."""
    num_local, num_rows = case.experts // case.world, case.world * case.max_tokens
    return [case.max_tokens, case.experts, num_local, num_rows]


def _message(call: Any, *args: Any) -> str:
    try:
        call(*args)
    except deep_ll.DeepLLError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing raised"
