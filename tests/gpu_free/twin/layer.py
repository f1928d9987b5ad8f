"""One rank's calls, and the bytes that their launches must have."""

from typing import Any

import torch
from cases import Case, make_inputs, make_outputs
from exchange import expect, padded, send

from deep_ll import _native

SEND, RECEIVE = 1, 2


class Calls:
    """One rank's calls, and the bytes that their launches must have."""

    def __init__(self, buf: Any, case: Case, seed: int = 0) -> None:
        inputs = make_inputs(case, seed)
        self.buf, self.case, self.mine = buf, case, inputs[buf.rank]
        self.received = expect(case, inputs)
        self.outputs = padded(case, make_outputs(case, seed, self.received)[buf.rank])
        self.out = torch.empty_like(self.mine.x)
        self.stats = torch.zeros(len(case.experts_of(buf.rank)), dtype=torch.int32)

    def dispatch(self) -> Any:
        *_, self.handle, event, hook = send(self.buf, self.case, self.mine, self.stats)
        return event, hook

    def combine(self) -> Any:
        mine, mode = self.mine, self.case.mode
        _, event, hook = self.buf.low_latency_combine(
            self.outputs,
            mine.topk_idx,
            mine.topk_weights,
            self.handle,
            out=self.out,
            async_finish=mode == "event",
            return_recv_hook=mode == "hook",
        )
        return event, hook

    def bytes_of(self, halves: int) -> tuple[bytes, bytes]:
        """Of the dispatch and the combine of this handle."""
        session, this, mine = self.buf._session, self.handle.round, self.mine
        kind, slot, wide = this.kind, this.epoch % 2, mine.topk_idx.dtype == torch.int64
        indices = mine.topk_idx.data_ptr()
        counts = (kind.counts[slot].recv_count, kind.counts[slot].layout_range)
        addresses = [tensor.data_ptr() for tensor in counts]
        tokens = len(mine.x)
        batch = _native.Batch(mine.x.data_ptr(), tokens, *addresses, slot, indices, wide)
        memory = session._memory.kinds[kind.sizes]
        ledger = memory.ledgers[slot].data_ptr()
        stats = self.stats.data_ptr()
        native = session.launches
        dispatch = native.dispatch(kind.shape, ledger, batch, True, stats, halves)
        combine_slot = session.combined % 2
        total = _native.Sum(
            memory.choices[combine_slot].data_ptr(),
            mine.topk_weights.data_ptr(),
            self.out.data_ptr(),
            tokens,
            indices,
            wide,
        )
        answer = _native.Answer(slot, combine_slot, False, False, addresses[1])
        source = self.outputs.data_ptr()
        combine = native.combine(kind.shape, ledger, answer, source, total, halves)
        return bytes(dispatch), bytes(combine)
