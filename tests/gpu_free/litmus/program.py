"""A litmus test: threads, each a straight line of instructions, and the events they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

INIT = -1  # the thread that wrote zero everywhere before all others began

# A read-modify-write is two events. Which half carries which meaning:
READ_HALF = {"release": "relaxed", "acq_rel": "acquire"}
WRITE_HALF = {"acquire": "relaxed", "acq_rel": "release"}


@dataclass(frozen=True)
class Instruction:
    op: str  # ld st add fence bar hand take
    sem: str = "weak"  # weak relaxed acquire release acq_rel sc proxy
    scope: str = "cta"  # cta gpu sys
    name: str = ""  # location, barrier or hand-over
    value: int | str = 0  # a text is a register of the same thread
    reg: str = ""


@dataclass(frozen=True)
class Thread:
    gpu: str
    block: str
    code: tuple[Instruction, ...]
    proxy: str = "generic"


@dataclass(eq=False)
class Event:
    index: int
    thread: int
    kind: str  # Read Write Fence Proxy-fence Barrier Hand Take
    sem: str = "weak"
    scope: str = "sys"
    name: str = ""
    value: int | str = 0
    reg: str = ""
    proxy: str = "generic"
    reads_for: Event | None = None  # of a write: the read of the same read-modify-write

    @property
    def is_strong(self) -> bool:
        return self.sem != "weak"

    @property
    def is_access(self) -> bool:
        return self.kind in "RW"


def on(place: str, *code: Instruction, proxy: str = "generic") -> Thread:
    """A thread in `gpu.block`."""
    gpu, block = place.split(".")
    return Thread(gpu, f"{gpu}.{block}", code, proxy)


def ld(how: str, location: str, reg: str) -> Instruction:
    """`how` is `weak`, or `relaxed.gpu` and the like."""
    return Instruction("ld", *_split(how), location, reg=reg)


def st(how: str, location: str, value: int | str = 1) -> Instruction:
    return Instruction("st", *_split(how), location, value)


def add(how: str, location: str, value: int = 1, reg: str = "") -> Instruction:
    return Instruction("add", *_split(how), location, value, reg)


def fence(how: str) -> Instruction:
    """`acq_rel.sys`, `sc.gpu`, or `proxy`."""
    return Instruction("fence", *_split(how))


def bar(name: str) -> Instruction:
    """`bar.sync` or `bar.warp.sync`, among all threads of one block that name it."""
    return Instruction("bar", name=name)


def hand(name: str) -> Instruction:
    """What came before here is over for whoever takes it: the start or end of a bulk copy."""
    return Instruction("hand", name=name)


def take(name: str) -> Instruction:
    return Instruction("take", name=name)


def _split(how: str) -> tuple[str, str]:
    sem, _, scope = how.partition(".")
    return sem, scope or "sys"


@dataclass
class Program:
    threads: tuple[Thread, ...]
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        code = chain.from_iterable(thread.code for thread in self.threads)
        self.locations = sorted({i.name for i in code if i.op in ("ld", "st", "add")})
        for location in self.locations:
            self._new(thread=INIT, kind="W", name=location)
        for number, thread in enumerate(self.threads):
            for instruction in thread.code:
                self._append(number, thread.proxy, instruction)

    def _new(self, **fields) -> Event:
        event = Event(len(self.events), **fields)
        self.events.append(event)
        return event

    def _append(self, thread: int, proxy: str, it: Instruction) -> None:
        plain = {"thread": thread, "scope": it.scope, "name": it.name, "proxy": proxy}
        if it.op == "add":
            sem = READ_HALF.get(it.sem, it.sem)
            read = self._new(kind="R", sem=sem, reg=it.reg, **plain)
            sem = WRITE_HALF.get(it.sem, it.sem)
            self._new(kind="W", sem=sem, value=it.value, reads_for=read, **plain)
        elif it.op == "fence":
            self._new(kind="P" if it.sem == "proxy" else "F", sem=it.sem, **plain)
        else:
            kind = {"ld": "R", "st": "W", "bar": "B", "hand": "H", "take": "T"}[it.op]
            self._new(kind=kind, sem=it.sem, value=it.value, reg=it.reg, **plain)

    def of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]

    def writes_to(self, location: str) -> list[Event]:
        """Without the initial one."""
        return [w for w in self.of("W") if w.name == location and w.thread != INIT]

    def place(self, event: Event) -> tuple[str, str]:
        thread = self.threads[event.thread]
        return thread.gpu, thread.block
