"""What the ranks of test_link_exchange.py do: the oracle's rounds, with peers behind a link."""

import functools
import random
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from cases import Case, Inputs, make_inputs
from exchange import all_rounds, compare, expect, send, truth_of, wait
from orders import Batch
from topologies import Topology, environment, make_linked_buffer

import deep_ll
from deep_ll.testing.compare import assert_received

GREETING_BYTES = 24
SIGNALS_A_ROUND = 3  # counts, rows, outputs
LINE = 64


def under(group: Any, topology: Topology, work: Callable[..., Any], *args: Any) -> Any:
    """Work that knows nothing of links."""
    with environment(topology.variables()), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of hooks beside P2P: test_paths.py
        return work(group, *args)


def exchange(group: Any, case: Case, topology: Topology, expected: Topology | None = None) -> int:
    """All rounds of a case, and what they put on the link; returns the bytes of it. `expected`: the
    paths, if it is not the topology that makes them but that hosts differ.
    """
    return int(under(group, topology, _exchange, case, topology, expected or topology))


def _exchange(group: Any, case: Case, topology: Topology, expected_paths: Topology) -> int:
    with make_linked_buffer(group, case, topology) as buf:
        assert [path.kind for path in buf.paths()] == expected_paths.kinds(buf.rank, case.world)
        all_rounds(buf, case)
        return sum(check_traffic(buf, [case], peer, expected_paths) for peer in range(case.world))


def table(group: Any, cases: Sequence[Case], topology: Topology, num_bytes: int) -> None:
    """All cases, one after the other over one buffer; all have its number of threads."""
    under(group, topology, _table, cases, topology, num_bytes)


def _table(group: Any, cases: Sequence[Case], topology: Topology, num_bytes: int) -> None:
    threads = cases[0].threads
    with deep_ll.Buffer(group, 0, num_bytes, num_threads=threads) as buf:
        assert [path.kind for path in buf.paths()] == topology.kinds(buf.rank, buf.group_size)
        for case in cases:
            try:
                for round_idx in range(case.rounds):
                    compare(buf, case, _truth_of(case, round_idx, buf.rank))
            except (AssertionError, deep_ll.DeepLLError) as error:
                raise AssertionError(f"rank {buf.rank}, {case}: {error}") from error
        for peer in range(buf.group_size):
            check_traffic(buf, cases, peer, topology)


_truth_of = functools.cache(truth_of)  # the ranks of a pool see the same cases again


def check_traffic(buf: deep_ll.Buffer, cases: Sequence[Case], peer: int, topology: Topology) -> int:
    """What went to a peer and came from it: rows, labels, counts. Nothing to one that is mapped."""
    link = buf._session.heap.link  # type: ignore[union-attr]
    if link is None:
        assert not topology.is_linked(buf.rank, peer)
        return 0
    stats = link.stats(peer)
    if not topology.is_linked(buf.rank, peer):
        assert not any(stats.values()), stats
        return 0
    rounds = [(case, make_inputs(case, i)) for case in cases for i in range(case.rounds)]
    sent = sum(bytes_of_round(*one, buf.rank, peer) for one in rounds)
    landed = sum(bytes_of_round(*one, peer, buf.rank) for one in rounds)
    assert (stats["bytes_sent"], stats["bytes_landed"]) == (sent, landed)
    assert stats["signals"] == SIGNALS_A_ROUND * len(rounds)
    assert (stats["held_back"], stats["dropped"]) == (0, 0)
    return sent


def bytes_of_round(case: Case, inputs: list[Inputs], sender: int, receiver: int) -> int:
    """What `sender` owes `receiver` in one dispatch and one combine."""
    counts = 2 * case.experts + GREETING_BYTES
    rows = num_rows(case, inputs[sender], receiver)
    answers = num_rows(case, inputs[receiver], sender)
    return counts + rows * (row_bytes(case) + label_bytes(case)) + answers * answer_bytes(case)


def num_rows(case: Case, given: Inputs, owner: int) -> int:
    """Rows that these tokens send to the experts of `owner`."""
    num_local = len(case.experts_of(0))
    return int((given.topk_idx.div(num_local, rounding_mode="floor") == owner).sum())


def row_bytes(case: Case) -> int:
    return case.hidden * (2 if case.cast == "bf16" else 1)


def answer_bytes(case: Case) -> int:
    """In LogFMT 10 bits a value and 8 bytes for 128 of them, in whole vectors."""
    return -(-case.hidden // 128 * 168 // 16) * 16 if case.logfmt else 2 * case.hidden


def label_bytes(case: Case) -> int:
    """Scales, and where the row is from, in whole lines unless it is very short."""
    words = {"bf16": 0, "ue8m0": -(-case.hidden // 512)}.get(case.cast, case.hidden // 128)
    used = (4 * words + 7) // 8 * 8 + 8
    return 16 if used <= 16 else -(-used // LINE) * LINE


def sizes_at_random(case: Case, num: int) -> list[Case]:
    """Smaller cases, the same on all ranks, that share the buffer of `case`."""
    rng = random.Random(0)
    return [
        Case(
            world=case.world,
            experts=case.world * rng.choice([1, 2, 4]),
            topk=rng.randint(1, min(4, case.world)),
            max_tokens=(most := rng.randint(1, case.max_tokens)),
            tokens=tuple(rng.randint(0, most) for _ in range(case.world)),
            hidden=128 * rng.randint(1, case.hidden // 128),
            cast=rng.choice(["bf16", "fp8", "rounded", "ue8m0"]),
            mode=rng.choice(["plain", "hook", "event"]),
            zero_copy=rng.random() < 0.5,
            routing=rng.choice(["random", "holes", "hot", "none"]),
        )
        for _ in range(num)
    ]


def late_hooks(group: Any, case: Case) -> None:
    """What a hook receives may lie there for long, and peers may be a round ahead."""
    with make_linked_buffer(group, case, Topology(disable="1")) as buf:
        for round_idx in range(4):
            batch = Batch(buf, case, round_idx)
            batch.dispatch()
            if buf.rank == round_idx % case.world:
                busy_for(0.2)
            batch.receive()
            batch.combine()
            if buf.rank == (round_idx + 1) % case.world:
                busy_for(0.2)
            batch.reduce()


def busy_for(seconds: float) -> None:
    """Computes, without a look at the buffer."""
    import time

    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def large_rows(group: Any, case: Case) -> None:
    """More than sockets and messages hold: all send before any receives."""
    with make_linked_buffer(group, case, Topology(disable="1"), timeout_s=20) as buf:
        for round_idx in range(2):
            inputs = make_inputs(case, round_idx)
            received = expect(case, inputs)
            recv_x, count, handle, event, hook = send(buf, case, inputs[buf.rank])
            wait(case.mode, event, hook)
            assert_received(recv_x, count, handle, received[buf.rank])
