"""What the ranks of test_rejoin.py do: rounds without the masked, compared with the oracle, and
what their test asks for by name."""

from __future__ import annotations

import os
import signal
import time
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from cases import Case, Inputs, make_inputs, make_outputs
from exchange import expect, mode_options, padded, send
from topologies import Topology, make_linked_buffer
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import deep_ll
from deep_ll import _native, reference
from deep_ll.testing.compare import assert_received, assert_same_bits
from deep_ll.testing.rank_process import _die_with_parent

CASE = Case(world=4, experts=8, tokens=5, max_tokens=6, hidden=128, topk=4)
TIMEOUT_S = 4.0
PATIENCE_S = 20.0


def without(inputs: list[Inputs], masked: list[int]) -> list[Inputs]:
    """The masked send nothing, and nobody chooses their experts."""
    num_local = CASE.experts // CASE.world
    result = []
    for rank, given in enumerate(inputs):
        chosen = given.topk_idx.clone()
        for peer in masked:
            chosen[chosen.div(num_local, rounding_mode="floor") == peer] = -1
        number = 0 if rank in masked else len(given.x)
        result.append(Inputs(given.x[:number], chosen[:number], given.topk_weights[:number]))
    return result


class Worker:
    """One rank. Methods are what the test may ask for."""

    def __init__(
        self, rank: int, store: TCPStore, topology: Topology, rejoin: bool, timeout_s: float
    ) -> None:
        self.store, self.rank, self.topology = store, rank, topology
        self.group = deep_ll.StoreGroup(store, rank, CASE.world, timeout_s=timeout_s, rejoin=rejoin)
        self.open()

    def open(self) -> None:
        options = {"enable_shrink": True, "timeout_s": TIMEOUT_S}
        self.buf = make_linked_buffer(self.group, CASE, self.topology, **options)
        self.check_paths()

    def check_paths(self) -> None:
        """Of who lives."""
        session = self.buf._session
        kinds = self.topology.kinds(self.rank, CASE.world)
        for path in self.buf.paths():
            masked = path.peer in session.members.masked  # type: ignore[union-attr]
            assert masked or path.kind == kinds[path.peer], path

    def again(self) -> None:
        """A rank that was masked but lives begins anew."""
        self.buf.destroy()
        self.group = deep_ll.StoreGroup(self.store, self.rank, CASE.world, rejoin=True)
        self.open()

    def round(self, index: int, masked: list[int]) -> None:
        """A dispatch and a combine, compared."""
        inputs = make_inputs(CASE, index)
        mine, present = inputs[self.rank], without(inputs, masked)
        received = expect(CASE, present)
        recv_x, count, handle, _, _ = send(self.buf, CASE, mine)
        assert_received(recv_x, count, handle, received[self.rank])
        outputs = make_outputs(CASE, index, received)
        combined, _, _ = self.buf.low_latency_combine(
            padded(CASE, outputs[self.rank]), mine.topk_idx, mine.topk_weights, handle
        )
        own = present[self.rank]
        expected = reference.combine(self.rank, outputs, received, own.topk_idx, own.topk_weights)
        assert_same_bits(combined, expected, "combined")
        status = torch.zeros(CASE.world, dtype=torch.int32)
        self.buf.low_latency_query_mask_buffer(status)
        assert status.nonzero().flatten().tolist() == masked

    def rejoin(self, rank: int, timeout_s: float | None = None) -> None:
        self.buf.rejoin(rank, timeout_s=timeout_s)
        self.check_paths()

    def rejoin_beside_a_hook(self, rank: int, index: int, masked: list[int]) -> str:
        """It is refused; then the hook is called."""
        mine = make_inputs(CASE, index)[self.rank]
        sizes = (CASE.max_tokens, CASE.experts)
        *_, hook = self.buf.low_latency_dispatch(
            mine.x, mine.topk_idx, *sizes, **mode_options("hook")
        )
        text = self.error_of("rejoin", rank)
        hook()
        return text

    def error_of(self, name: str, *args: Any) -> str:
        """Type and text of what a call raises."""
        try:
            getattr(self, name)(*args)
        except deep_ll.DeepLLError as error:
            return f"{type(error).__name__}: {error}"
        return "nothing raised"

    def rejoin_elsewhere(self, rank: int) -> str:
        """Without a store, and with that of another rank."""
        other = deep_ll.StoreGroup(self.store, (self.rank + 1) % CASE.world, CASE.world)
        texts = []
        for group in (object(), other):
            try:
                self.buf.rejoin(rank, group)
            except deep_ll.ArgumentError as error:
                texts.append(str(error))
        return "\n".join(texts)

    def used(self) -> tuple[int, int]:
        """Descriptors and threads of this process."""
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def stop_and_go_on(self, index: int) -> str:
        """Stops when its rows are on their way, but only itself was told so."""
        _native.set_fault("deliver.peer", signal.SIGSTOP, 2)
        return self.late_round(index)

    def await_dropped(self, peer: int) -> None:
        """Until a message has come in the name of a peer that is none."""
        link = self.buf._session.heap.link  # type: ignore[union-attr]
        deadline = time.monotonic() + PATIENCE_S
        while not link.stats(peer)["dropped"]:
            assert time.monotonic() < deadline, "nothing was dropped"
            time.sleep(0.01)

    def late_round(self, index: int) -> str:
        """Of a rank that was stopped: it hears that it was masked."""
        try:
            send(self.buf, CASE, make_inputs(CASE, index)[self.rank])
        except deep_ll.PeerError as error:
            return str(error)
        return "nothing raised"

    def uses_shm(self) -> bool:
        return "/dev/shm" in Path("/proc/self/maps").read_text()


def serve(
    rank: int, port: int, topology: Topology, rejoin: bool, timeout_s: float, conn: Connection
) -> None:
    """Answers (name, args) with (error, result) until the pipe is closed."""
    _die_with_parent()
    torch.set_num_threads(1)
    worker: Worker | None = None
    try:
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        worker = Worker(rank, store, topology, rejoin, timeout_s)
        conn.send(("", None))
    except BaseException:
        conn.send((traceback.format_exc(), None))
    while worker is not None:
        try:
            name, args = conn.recv()
        except EOFError:
            break
        try:
            conn.send(("", getattr(worker, name)(*args)))
        except BaseException:
            conn.send((traceback.format_exc(), None))
    if worker is not None:
        worker.buf.destroy()
