"""The native half of deep_ll (csrc/bindings/module.cpp): integers in, nothing decided."""

from typing import TypeAlias, final

# Peer, phase, its greeting and ours, the value of its signal and of ours.
_Greeting: TypeAlias = tuple[int, int, int, int, int, int]
Difference: TypeAlias = tuple[int, int, _Greeting, _Greeting, int, int]

# What a peer left that cannot be: of what, peer, phase, place, found, bound.
Nonsense: TypeAlias = tuple[int, int, int, int, int, int]

NONCE_BYTES: int
MAX_TOPK: int
MAX_TOKENS: int
MAX_RANKS: int
MAX_EXPERTS: int
HEAP_HEADER_BYTES: int
MESSAGE_BYTES: int
MESSAGES_PER_PEER: int
HAVE_UCX: bool  # else there is no UcxLink and no LinkError

class LinkError(RuntimeError):
    """UCX cannot do what the link needs."""

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
    experts_per_rank: int
    max_rows: int
    scale_words: int
    row_bytes: int
    label_bytes: int
    ledger_bytes: int
    heap_bytes: int
    recv_bytes: int
    combine_bytes: int
    network_slot_bytes: int
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

    timeout_ns: int
    def __init__(
        self, timeout_ns: int, streaming: bool, small: bool, columns: bool, costs: int = 0
    ) -> None: ...

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
    place, whether they travel in LogFMT; and that dispatch's layout_range, by address.
    """

    def __init__(
        self,
        recv_slot: int,
        combine_slot: int,
        pulled: bool,
        logfmt: bool,
        layout_range: int,
        /,
    ) -> None: ...

@final
class Sum:
    """The tensors of a combine's receiving half, by address."""

    def __init__(
        self,
        choices: int,
        weights: int,
        out: int,
        num_tokens: int,
        indices: int = 0,
        wide: bool = False,
    ) -> None: ...

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
    notes: Object
    views: Object
    grants: Object
    recv: Object
    combine: Object
    mail: Object
    num_bytes: int
    max_experts: int
    @staticmethod
    def carve(num_bytes: int, num_ranks: int) -> Window: ...
    def outputs(self, slot: int, /) -> int: ...

# How often a rank was waited for, in all and at most for how many ns, and {ns: how often} about.
Tally: TypeAlias = tuple[int, int, int, dict[int, int]]
# Of a phase or a wait: name, call, start and duration in ns, epoch, peer or -1.
Event: TypeAlias = tuple[str, str, int, int, int, int]

@final
class Watch:
    """What a rank is at, and whom it has waited for; times are of CLOCK_MONOTONIC."""

    def record(self, most: int, /) -> None: ...
    def events(self) -> list[Event]: ...
    def num_events(self) -> int: ...
    def show(self, number: int, /) -> None: ...
    def hide(self) -> None: ...
    def describe(self) -> str: ...
    def waits(self) -> dict[str, tuple[int, list[Tally]]]: ...
    def bytes(self) -> list[int]: ...

@final
class Exchange:
    """One rank's end. Calls return False when they gave up; nonsense(), report() or
    disagreement() says why.
    """

    dispatched: int
    combined: int
    consumed: int
    num_threads: int
    watch: Watch
    def __init__(
        self,
        bases: list[int],
        rank: int,
        heap_bytes: int,
        num_threads: int,
        crowded: bool,
        level: str,
    ) -> None: ...
    # dispatched, combined, consumed, told_consumed, received[2], returned[2], met
    progress: list[int]
    def use_mask(self, mask: int, /) -> None: ...
    def replace(self, rank: int, base: int, linked: bool, /) -> None: ...
    def resume(self, progress: list[int], /) -> None: ...
    def meet(self, shape: Shape, options: CallOptions, /) -> bool: ...
    def use_link(self, link: UcxLink, linked: list[bool], /) -> None: ...
    def dispatch_send(
        self, shape: Shape, options: CallOptions, ledger: int, batch: Batch, /
    ) -> bool: ...
    def dispatch_receive(
        self, shape: Shape, options: CallOptions, ledger: int, batch: Batch, stats: int, /
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
    def disagreement(self) -> Difference | None: ...
    def nonsense(self) -> Nonsense | None: ...

@final
class Launches:
    """Parameters of the kernels on a GPU, and what they told the host."""

    timeout_ns: int  # of what is launched from now on

    DEVICE_STATE_BYTES: int
    HOST_STATE_BYTES: int
    DISPATCH_BYTES: int
    COMBINE_BYTES: int
    def __init__(
        self,
        bases: int,
        rank: int,
        num_ranks: int,
        heap_bytes: int,
        device_state: int,
        host_state: int,
        host_view: int,
        timeout_ns: int,
        mask: int = 0,
        network: int = 0,
        linked: int = 0,
    ) -> None: ...
    @staticmethod
    def network(queues: int, num_queues: int, sent: int, mail: int, /) -> bytearray: ...
    def dispatch(
        self,
        shape: Shape,
        ledger: int,
        batch: Batch,
        columns: bool,
        stats: int,
        halves: int,
        costs: int = 0,
    ) -> bytearray: ...
    def combine(
        self,
        shape: Shape,
        ledger: int,
        answer: Answer,
        x: int,
        sum: Sum,
        halves: int,
        costs: int = 0,
    ) -> bytearray: ...
    def failed(self) -> bool: ...
    def take_bad_choice(self) -> tuple[int, int, int, int] | None: ...
    def report(self) -> tuple[int, int, int, list[tuple[int, int]]]: ...
    def disagreement(self) -> Difference | None: ...
    def nonsense(self) -> Nonsense | None: ...
    @staticmethod
    def shared_bytes(shape: Shape, num_warps: int, /) -> int: ...

@final
class LinkLanding:
    """The receiving half of a link alone, for tests."""

    dropped: int
    def __init__(
        self,
        rank: int,
        size: int,
        heap_address: int,
        heap_bytes: int,
        secret: bytes,
        first_number: int = 0,
    ) -> None: ...
    def begin(self, sender: int, number: int, /) -> None: ...
    def land(self, message: bytes, /) -> bool: ...
    def stats(self, sender: int, /) -> dict[str, int]: ...

@final
class UcxLink:
    """The link to peers whose memory cannot be mapped; see csrc/symm/link.hpp."""

    dropped: int
    version: str
    def __init__(
        self,
        rank: int,
        size: int,
        heap_address: int,
        heap_bytes: int,
        secret: bytes,
        net_device: str,
        library_path: str,
        patience_ns: int = 0,
    ) -> None: ...
    def address(self) -> bytes: ...
    def expect_anew(self, peer: int, first_number: int, /) -> None: ...
    def connect(self, peer: int, address: bytes, /) -> None: ...
    def meet(self, peers: list[int], timeout_ns: int, /) -> list[int]: ...
    def put(self, peer: int, offset: int, address: int, num_bytes: int, /) -> None: ...
    def signal(self, peer: int, offset: int, word: int, /) -> None: ...
    def progress(self) -> bool: ...
    def rest(self) -> None: ...
    def dead(self, peer: int, /) -> bool: ...
    def take_back(self, peer: int, /) -> None: ...
    def why_dead(self, peer: int, /) -> str: ...
    def stats(self, peer: int, /) -> dict[str, int]: ...
    def close(self, timeout_ns: int, /) -> None: ...
    def send_raw(self, peer: int, message: bytes, /) -> None: ...

def copy_choices(
    indices: int, wide: bool, num_tokens: int, shape: Shape, out: int, dispatched: int, /
) -> tuple[int, int, int, int] | None: ...
def levels() -> list[str]: ...
def mark_gone(heap: int, /) -> None: ...
def is_gone(heap: int, /) -> bool: ...
def set_fault(point: str, signal: int, visit: int, /) -> None: ...
