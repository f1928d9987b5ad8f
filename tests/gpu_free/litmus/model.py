"""What the PTX ISA's chapter on memory consistency says of a program before it runs: which
operations are morally strong, and where release and acquire patterns are.

Locations do not overlap partly, so complete overlap is the same location.

Two things go beyond the chapter. The proxy fence of an access must be executed in the block of that
access: the stricter reading. A bulk copy is a thread of its own in the async proxy; `hand` and
`take` order its start after what its issuer did, and its issuer's wait after its end.
"""

from __future__ import annotations

from litmus.program import INIT, Event, Program
from litmus.relations import Relation, both, has, of_pairs, pairs


def _same(a: Event, b: Event) -> bool:
    return a.is_access and b.is_access and a.name == b.name


class Model:
    """What does not depend on the execution."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.events = program.events
        self.po = pairs(self.events, self._in_program_order)
        self.same = pairs(self.events, _same)
        self.strong = pairs(self.events, self._morally_strong)
        self.release = pairs(self.events, self._release_pattern)
        self.acquire = pairs(self.events, self._acquire_pattern)
        self.handed = pairs(self.events, self._handed)
        self.rmw = of_pairs(len(self.events), ((w.reads_for, w) for w in self._atomic_writes()))
        self.reads = sum(1 << r.index for r in program.of("R"))
        self.po_same = both(self.po, self.same)

    def _atomic_writes(self) -> list[Event]:
        return [w for w in self.program.of("W") if w.reads_for]

    def _in_program_order(self, a: Event, b: Event) -> bool:
        if a.thread == INIT:
            return b.thread != INIT
        return a.thread == b.thread and a.index < b.index

    def _includes(self, a: Event, b: Event) -> bool:
        """The scope of a includes the thread of b."""
        if INIT in (a.thread, b.thread):
            return False
        here, there = self.program.place(a), self.program.place(b)
        near = {"cta": here == there, "gpu": here[0] == there[0], "sys": True}
        return near[a.scope]

    def _morally_strong(self, a: Event, b: Event) -> bool:
        if a is b or a.kind not in "RWF" or b.kind not in "RWF" or a.proxy != b.proxy:
            return False
        if a.is_access and b.is_access and not _same(a, b):
            return False
        if has(self.po, a, b) or has(self.po, b, a):
            return True
        return a.is_strong and b.is_strong and self._includes(a, b) and self._includes(b, a)

    def _release_pattern(self, first: Event, write: Event) -> bool:
        if write.kind != "W" or not write.is_strong:
            return False
        if first is write:
            return write.sem == "release"
        released = first.kind == "W" and first.sem == "release" and _same(first, write)
        return has(self.po, first, write) and (released or first.kind == "F")

    def _acquire_pattern(self, read: Event, last: Event) -> bool:
        if read.kind != "R" or not read.is_strong:
            return False
        if read is last:
            return read.sem == "acquire"
        acquired = last.kind == "R" and last.sem == "acquire" and _same(read, last)
        return has(self.po, read, last) and (acquired or last.kind == "F")

    def _handed(self, a: Event, b: Event) -> bool:
        """Barriers, both ways; starts and ends of bulk copies, one way."""
        if a.name != b.name or a.thread == b.thread:
            return False
        if a.kind == b.kind == "B":
            return self.program.place(a) == self.program.place(b)
        return a.kind == "H" and b.kind == "T"

    def through_proxies(self, base: Relation) -> Relation:
        """Base causality, as far as it holds between accesses that go through different proxies."""
        fences = self.program.of("P")

        def holds(a: Event, b: Event) -> bool:
            if not has(base, a, b):
                return False
            if a.proxy == b.proxy and (a.proxy == "generic" or self._same_block(a, b)):
                return True
            ends = [event for event in (a, b) if event.proxy != "generic"]
            return all(
                any(
                    self._same_block(f, end) and has(base, a, f) and has(base, f, b) for f in fences
                )
                for end in ends
            )

        if not any(event.proxy != "generic" for event in self.events):
            return base
        return pairs(self.events, holds)

    def _same_block(self, a: Event, b: Event) -> bool:
        return INIT not in (a.thread, b.thread) and self.program.place(a) == self.program.place(b)
