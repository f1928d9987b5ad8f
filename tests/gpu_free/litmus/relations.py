"""Relations between events: row `a` holds a bit for each `b` with a -> b."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from litmus.program import Event

Relation = list[int]


def pairs(events: list[Event], holds: Callable[[Event, Event], bool]) -> Relation:
    return [sum(1 << b.index for b in events if holds(a, b)) for a in events]


def of_pairs(size: int, edges: Iterable[tuple[Event, Event]]) -> Relation:
    rows = [0] * size
    for a, b in edges:
        rows[a.index] |= 1 << b.index
    return rows


def has(relation: Relation, a: Event, b: Event) -> bool:
    return bool(relation[a.index] >> b.index & 1)


def union(*relations: Relation) -> Relation:
    rows = list(relations[0])
    for relation in relations[1:]:
        rows = [x | y for x, y in zip(rows, relation, strict=True)]
    return rows


def both(a: Relation, b: Relation) -> Relation:
    return [x & y for x, y in zip(a, b, strict=True)]


def then(first: Relation, second: Relation) -> Relation:
    rows = []
    for middle in first:
        row = 0
        while middle:
            low = middle & -middle
            row |= second[low.bit_length() - 1]
            middle ^= low
        rows.append(row)
    return rows


def turned(relation: Relation) -> Relation:
    size = range(len(relation))
    return [sum((relation[a] >> b & 1) << a for a in size) for b in size]


def closure(relation: Relation) -> Relation:
    rows = list(relation)
    for k in range(len(rows)):
        through = rows[k]
        for i, row in enumerate(rows):
            if row >> k & 1:
                rows[i] = row | through
    return rows


def irreflexive(relation: Relation) -> bool:
    return not any(row >> i & 1 for i, row in enumerate(relation))


def acyclic(relation: Relation) -> bool:
    return irreflexive(closure(relation))
