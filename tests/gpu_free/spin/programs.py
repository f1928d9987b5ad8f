"""Sequences of sending calls, and the tables by which protocol.pml reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    is_combine: bool
    epoch: int  # among the calls of its kind, from 1
    slot: int
    round: int  # a combine: the dispatch that it answers
    pulled: bool


def parse(program: str, recv_slots: int, combine_slots: int) -> list[Call]:
    """`D` dispatches, `C2` answers dispatch 2, `C2p` does so zero-copy. Slots take turns, unless
    they are written behind: `D/0`, `C2p/1`.
    """
    calls: list[Call] = []
    for word in program.split():
        text, _, slot = word.partition("/")
        is_combine = text[0] == "C"
        epoch = 1 + sum(call.is_combine == is_combine for call in calls)
        chosen = int(slot) if slot else epoch % (combine_slots if is_combine else recv_slots)
        answered = int(text[1:].removesuffix("p")) if is_combine else 0
        calls.append(Call(is_combine, epoch, chosen, answered, text.endswith("p")))
    return calls


def last_use(calls: list[Call], i: int) -> int:
    """The last call of the same kind that had the same slot; 0: none."""
    it = calls[i]
    return max(
        (c.epoch for c in calls[:i] if (c.is_combine, c.slot) == (it.is_combine, it.slot)),
        default=0,
    )


def last_answer(calls: list[Call], i: int, dispatch: int) -> int:
    return max((c.epoch for c in calls[:i] if c.is_combine and c.round == dispatch), default=0)


# Rules for the combine that every peer must have read before the next one is sent.
Credit = Callable[[list[Call], int], int]


def no_credit(calls: list[Call], i: int) -> int:
    return 0


def one_earlier(calls: list[Call], i: int) -> int:
    return max(0, last_use(calls, i) - 1)


def two_back(calls: list[Call], i: int) -> int:
    return max(0, calls[i].epoch - 2)


def last_or_before(calls: list[Call], i: int) -> int:
    """The last combine if it had the same slot, else the one before it."""
    last = calls[i].epoch - 1
    return last if last_use(calls, i) == last else max(0, last - 1)


def header(calls: list[Call], credit: Credit, forgets: bool) -> str:
    """`forgets`: the session believes that dispatches take turns between two slots."""
    needs_received, needs_finished, credits = {}, {}, {}
    for i, call in enumerate(calls):
        before = last_use(calls, i)
        if call.is_combine:
            needs_received[i], needs_finished[i] = call.round, before
            credits[i] = credit(calls, i)
        else:
            before = two_back(calls, i) if forgets else before
            needs_received[i], needs_finished[i] = before, last_answer(calls, i, before)
    dispatches = [c for c in calls if not c.is_combine]
    combines = [c for c in calls if c.is_combine]
    tables = {
        "IS_COMBINE": dict(enumerate(c.is_combine for c in calls)),
        "EPOCH": dict(enumerate(c.epoch for c in calls)),
        "SLOT": dict(enumerate(c.slot for c in calls)),
        "KEPT_AT": dict(enumerate(c.epoch % 2 if forgets else c.slot for c in calls)),
        "NEEDS_RECEIVED": needs_received,
        "NEEDS_FINISHED": needs_finished,
        "CREDIT": credits,
        "RECV_SLOT": {c.epoch: c.slot for c in dispatches},
        "COMBINE_SLOT": {c.epoch: c.slot for c in combines},
        "ROUND": {c.epoch: c.round for c in combines},
        "PULLED": {c.epoch: c.pulled for c in combines},
        "VALUE": {c.epoch: c.round << 2 | c.slot << 1 | c.pulled for c in combines},
    }
    return f"#define NUM_CALLS {len(calls)}\n" + "".join(map(_table, tables, tables.values()))


def _table(name: str, values: dict[int, int]) -> str:
    """A macro of one argument; 0 where nothing is said."""
    terms = [f"{int(value)} * ((x) == {x})" for x, value in values.items() if value]
    return f"#define {name}(x) ({' + '.join(terms) or '0'})\n"
