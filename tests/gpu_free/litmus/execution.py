"""The axioms of the PTX memory model, over all executions of a program.

An execution says which write each read reads from, in which order `fence.sc` took effect, and how
the writes to a location follow each other (coherence). It is allowed if it breaks no axiom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

from litmus.model import Model
from litmus.program import INIT, Event, Program, Thread
from litmus.relations import (
    Relation,
    acyclic,
    both,
    closure,
    has,
    irreflexive,
    of_pairs,
    then,
    turned,
    union,
)

Values = dict[str, int]
Orders = dict[str, tuple[Event, ...]]


@dataclass
class Execution:
    model: Model
    source: dict[Event, Event]  # of each read, the write

    def __post_init__(self) -> None:
        self.size = len(self.model.events)
        self.reads_from = of_pairs(self.size, ((w, r) for r, w in self.source.items()))
        self.loads = {(r.thread, r.reg): r for r in self.source if r.reg}

    def is_out_of_thin_air(self) -> bool:
        """A value depends on itself."""
        copies = [
            (self.loads[w.thread, w.value], w)
            for w in self.model.program.of("W")
            if isinstance(w.value, str)
        ]
        depends = union(self.model.rmw, of_pairs(self.size, copies))
        return not acyclic(union(self.reads_from, depends))

    def value(self, write: Event) -> int:
        if isinstance(write.value, str):
            return self.value(self.source[self.loads[write.thread, write.value]])
        if write.reads_for:
            return self.value(self.source[write.reads_for]) + write.value
        return write.value

    def registers(self) -> Values:
        return {r.reg: self.value(w) for r, w in self.source.items() if r.reg}

    def causality(self, fences: Relation) -> Relation:
        """`fences`: the order of `fence.sc`."""
        model = self.model
        seen = closure(union(both(self.reads_from, model.strong), model.rmw))
        observed = [
            row & model.reads if e.kind == "W" else 0
            for e, row in zip(model.events, seen, strict=True)
        ]
        sync = both(then(then(model.release, observed), model.acquire), model.strong)
        base = model.through_proxies(closure(union(model.po, sync, fences, model.handed)))
        return union(base, then(observed, base))

    def coherence(self, cause: Relation, orders: Orders) -> Relation:
        """Partial: only writes that are morally strong or causally ordered follow each other."""
        edges = []
        for order in orders.values():
            for i, a in enumerate(order):
                later = order[i + 1 :]
                edges += [(a, b) for b in later if a.thread == INIT or has(self.model.strong, a, b)]
                edges += [(a, b) for b in order if a is not b and has(cause, a, b)]
        return closure(of_pairs(self.size, edges))

    def keeps_axioms(self, cause: Relation, coherence: Relation) -> bool:
        strong = self.model.strong
        later = [
            (r, b)
            for r, w in self.source.items()
            for b in self.model.events
            if has(coherence, w, b)
        ]
        from_read = of_pairs(self.size, (p for p in later if p[1].reads_for is not p[0]))
        talk = union(self.reads_from, coherence, from_read)
        per_location = union(self.model.po_same, both(talk, strong))
        torn = both(then(both(from_read, strong), both(coherence, strong)), self.model.rmw)
        return (
            irreflexive(coherence)
            and irreflexive(then(union(self.reads_from, from_read), cause))
            and acyclic(per_location)
            and not any(torn)
        )

    def last_writes(self, coherence: Relation, orders: Orders) -> Values | None:
        """What is left in memory; None if the last of an order is not last in coherence."""
        last = {location: order[-1] for location, order in orders.items()}
        if any(coherence[write.index] for write in last.values()):
            return None
        return {location: self.value(write) for location, write in last.items()}


def executions(model: Model) -> Iterator[Execution]:
    program = model.program
    reads = program.of("R")
    choices = [
        [w for w in program.of("W") if w.name == r.name and w.reads_for is not r] for r in reads
    ]
    for choice in product(*choices):
        execution = Execution(model, dict(zip(reads, choice, strict=True)))
        if not execution.is_out_of_thin_air():
            yield execution


def fence_orders(model: Model) -> Iterator[Relation]:
    fences = [f for f in model.program.of("F") if f.sem == "sc"]
    for order in permutations(fences):
        edges = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
        yield of_pairs(len(model.events), (p for p in edges if has(model.strong, *p)))


def write_orders(program: Program) -> Iterator[Orders]:
    initial = {e.name: e for e in program.of("W") if e.thread == INIT}
    ways = [permutations(program.writes_to(location)) for location in initial]
    for orders in product(*ways):
        yield {name: (initial[name], *order) for name, order in zip(initial, orders, strict=True)}


def outcomes(threads: tuple[Thread, ...], wanted: Values) -> Iterator[Values]:
    """Of each allowed execution, registers and memory at the end. Left out are those whose
    registers are not the wanted ones.
    """
    model = Model(Program(threads))
    for execution in executions(model):
        registers = execution.registers()
        if any(wanted.get(reg, value) != value for reg, value in registers.items()):
            continue
        for fences in fence_orders(model):
            cause = execution.causality(fences)
            if any(both(cause, turned(fences))):
                continue
            for orders in write_orders(model.program):
                coherence = execution.coherence(cause, orders)
                memory = execution.last_writes(coherence, orders)
                if memory is not None and execution.keeps_axioms(cause, coherence):
                    yield registers | memory


def is_allowed(threads: tuple[Thread, ...], outcome: str) -> bool:
    """`outcome`: values of registers or locations, as in `flag=1 data=0`."""
    wanted = {name: int(value) for name, value in (part.split("=") for part in outcome.split())}
    return any(
        all(found[name] == value for name, value in wanted.items())
        for found in outcomes(threads, wanted)
    )
