"""What test_gpu_graphs.py runs: layers recorded once and replayed with other tensors' contents."""

from typing import Any

import torch
from cases import Case, make_inputs, make_outputs
from exchange import expect, mode_options, padded, round_trip, send, wait

from deep_ll import reference
from deep_ll.testing.compare import assert_received, assert_same_bits
from twin import world
from twin.cases import make_buffer, on_ranks
from twin.graphs import Graph


class Layer:
    """One dispatch and combine over tensors that stay where they are."""

    def __init__(self, buf: Any, case: Case) -> None:
        self.buf, self.case = buf, case
        self.mine = make_inputs(case, 0)[buf.rank]
        rows = (case.experts // case.world, case.world * case.max_tokens, case.hidden)
        self.outputs = torch.empty(rows, dtype=torch.bfloat16)
        self.combined = torch.empty_like(self.mine.x)

    def fill(self, seed: int) -> None:
        """Other contents, on all ranks."""
        inputs = make_inputs(self.case, seed)
        for tensor, content in zip(self.mine, inputs[self.buf.rank], strict=True):
            tensor.copy_(content)
        self.received = expect(self.case, inputs)
        self.answers = make_outputs(self.case, seed, self.received)
        padded(self.case, self.answers[self.buf.rank], self.outputs)
        self.combined.fill_(torch.nan)

    def dispatch(self) -> tuple[Any, Any]:
        *self.results, event, hook = send(self.buf, self.case, self.mine)
        return event, hook

    def combine(self, graph: Graph) -> tuple[Any, Any]:
        graph.do(self.check_received)
        handle, x = self.results[2], self.outputs
        if self.case.zero_copy:
            x = self.buf.get_next_low_latency_combine_buffer(handle)
            graph.do(lambda: x.copy_(self.outputs))
        _, event, hook = self.buf.low_latency_combine(
            x,
            self.mine.topk_idx,
            self.mine.topk_weights,
            handle,
            zero_copy=self.case.zero_copy,
            out=self.combined,
            **mode_options(self.case.mode),
        )
        return event, hook

    def check_received(self) -> None:
        assert_received(*self.results, self.received[self.buf.rank])

    def check_combined(self) -> None:
        rank, mine = self.buf.rank, self.mine
        expected = reference.combine(
            rank, self.answers, self.received, mine.topk_idx, mine.topk_weights
        )
        assert_same_bits(self.combined, expected, "combined")


def record(layers: list[Layer], two_batches: bool) -> Graph:
    """Captures the layers; with `two_batches`, as two micro-batches that overlap."""
    graph, mode = Graph(), layers[0].case.mode
    groups = [layers[i : i + 2] for i in range(0, len(layers), 2)] if two_batches else None
    with graph.capture():
        for group in groups or [[layer] for layer in layers]:
            waiting = [layer.dispatch() for layer in group]
            for each in waiting:
                wait(mode, *each)
            waiting = [layer.combine(graph) for layer in group]
            for each in waiting:
                wait(mode, *each)
    return graph


def replays(group: Any, case: Case, num_layers: int, two_batches: bool) -> None:
    """Replays, with ordinary calls before and between."""
    with make_buffer(group, case) as buf:
        round_trip(buf, case, 0)
        layers = [Layer(buf, case) for _ in range(num_layers)]
        graph = record(layers, two_batches)
        halves = 2 if case.mode == "hook" else 1
        waits = {"event": 4}.get(case.mode, 0)
        assert graph.num_launches >= num_layers * (2 * halves + waits + case.zero_copy) - waits
        seed = 1
        for replay in range(5):
            for layer in layers:
                layer.fill(seed)
                seed += 1
            graph.replay()
            for layer in layers:
                layer.check_combined()
            if replay == 2:
                round_trip(buf, case, 99)
        for round_idx in range(100, 103):
            round_trip(buf, case, round_idx)


def two_graphs(group: Any, case: Case) -> None:
    """Two graphs of one buffer, replayed in any order."""
    with make_buffer(group, case) as buf:
        round_trip(buf, case, 0)
        layers = [Layer(buf, case) for _ in range(3)]
        graphs = [record(layers[:1], False), record(layers[1:], False)]
        for seed, which in enumerate((0, 0, 1, 0, 1, 1)):
            for layer in layers:
                layer.fill(10 * seed + layers.index(layer))
            graphs[which].replay()
            for layer in (layers[:1], layers[1:])[which]:
                layer.check_combined()


def refused(group: Any, case: Case) -> list[str]:
    """What cannot be captured, and that it works outside afterwards."""
    texts = []
    with Graph().capture():
        texts.append(error_of(lambda: make_buffer(group, case)))
    with make_buffer(group, case) as buf:
        group.barrier()
        before = world.TwinDevice.num_allocations
        with Graph().capture():
            texts.append(error_of(lambda: Layer(buf, case).dispatch()))
        group.barrier()
        assert world.TwinDevice.num_allocations == before
        assert not buf._session.kinds._known
        group.barrier()
        round_trip(buf, case, 0)
    return texts


def split(group: Any, case: Case) -> list[str]:
    """Operations of which one half was captured and the other not."""
    texts = []
    with make_buffer(group, case) as buf:
        round_trip(buf, case, 0)
        event, hook = Layer(buf, case).dispatch()
        with Graph().capture():
            texts.append(error_of(hook or event.current_stream_wait))
    with make_buffer(group, case) as buf:
        round_trip(buf, case, 0)
        with Graph().capture():
            event, hook = Layer(buf, case).dispatch()
        texts.append(error_of(hook or event.current_stream_wait))
    return texts


def after_the_default_stream(group: Any, case: Case) -> None:
    """The default stream must not even be asked about while another one is captured."""
    with make_buffer(group, case) as buf:
        with world.on_stream(0):
            round_trip(buf, case, 0)
        layers = [Layer(buf, case)]
        graph = record(layers, False)
        for seed in range(1, 4):
            layers[0].fill(seed)
            graph.replay()
            layers[0].check_combined()
        with world.on_stream(0):
            round_trip(buf, case, 5)


def error_of(work: Any) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing raised"


def run(name: str, case: Case, *args: Any) -> Any:
    return on_ranks(case.world, globals()[name], case, *args)
