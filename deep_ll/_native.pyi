"""The native half of deep_ll (csrc/bindings/module.cpp): integers in, nothing decided."""

from typing import final

NONCE_BYTES: int
MAX_TOPK: int
MAX_TOKENS: int
MAX_RANKS: int
MAX_EXPERTS: int

@final
class Shape:
    """The numbers of one exchange."""

    num_ranks: int
    num_experts: int
    max_tokens: int
    hidden: int
    num_topk: int
    format: int
    num_local: int
    max_rows: int
    scale_words: int
    row_bytes: int
    label_bytes: int
    ledger_bytes: int
    heap_bytes: int
    recv_bytes: int
    combine_bytes: int
    recv_offsets: tuple[int, int, int, int]
    def __init__(
        self,
        num_ranks: int,
        rank: int,
        num_experts: int,
        max_tokens: int,
        hidden: int,
        num_topk: int,
        format: int,
    ) -> None: ...

@final
class CallOptions:
    """How a call waits and stores."""

    def __init__(self, timeout_ns: int, streaming: bool, small: bool, columns: bool) -> None: ...

@final
class Batch:
    """The tensors of a dispatch, by address."""

    def __init__(
        self,
        x: int,
        num_tokens: int,
        recv_count: int,
        layout_range: int,
        slot: int,
        indices: int,
        wide: bool,
        /,
    ) -> None: ...

@final
class Answer:
    """Which combine: the slot of the dispatch that it answers, its own, whether rows are read in
    place.
    """

    def __init__(self, recv_slot: int, combine_slot: int, pulled: bool, /) -> None: ...

@final
class Sum:
    """The tensors of a combine's receiving half, by address."""

    def __init__(self, choices: int, weights: int, out: int, num_tokens: int, /) -> None: ...

@final
class Object:
    """A part of the heap with slots that take turns."""

    offset: int
    slot_bytes: int
    slots: int

@final
class Window:
    """How a heap is cut up."""

    desks: Object
    counts: Object
    recv: Object
    combine: Object
    num_bytes: int
    max_experts: int
    @staticmethod
    def carve(num_bytes: int, num_ranks: int) -> Window: ...

@final
class Exchange:
    """One rank's end. Calls return False when they gave up; report() or disagreement() says why."""

    dispatched: int
    combined: int
    consumed: int
    num_threads: int
    def __init__(
        self,
        bases: list[int],
        rank: int,
        heap_bytes: int,
        num_threads: int,
        crowded: bool,
        level: str,
    ) -> None: ...
    def dispatch_send(
        self, shape: Shape, options: CallOptions, ledger: int, batch: Batch, /
    ) -> bool: ...
    def dispatch_receive(
        self, shape: Shape, options: CallOptions, ledger: int, slot: int, stats: int, /
    ) -> bool: ...
    def combine_send(
        self, shape: Shape, options: CallOptions, ledger: int, answer: Answer, x: int, /
    ) -> bool: ...
    def combine_receive(
        self, shape: Shape, options: CallOptions, ledger: int, answer: Answer, sum: Sum, /
    ) -> bool: ...
    def await_credit(self, shape: Shape, options: CallOptions, combine_slot: int, /) -> bool: ...
    def bad_choice(self) -> tuple[int, int, int, int] | None: ...
    def report(self) -> tuple[int, int, int, list[tuple[int, int]]]: ...
    def disagreement(self) -> tuple[int, int, int, int, int, int, int, int] | None: ...

def copy_choices(
    indices: int, wide: bool, num_tokens: int, shape: Shape, out: int, dispatched: int, /
) -> tuple[int, int, int, int] | None: ...
def levels() -> list[str]: ...
