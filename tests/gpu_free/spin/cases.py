"""What is asked of protocol.pml: cases that must be safe, and faults that it must notice."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from spin.programs import Credit, last_or_before, last_use, no_credit, one_earlier, two_back


@dataclass(frozen=True)
class Case:
    name: str
    program: str
    ranks: int = 3
    recv_slots: int = 2
    combine_slots: int = 2
    late: bool = True  # hooks may be called after later calls, as far as the session lets them
    credit: Credit = last_use
    forgets: bool = False
    faults: dict[str, object] = field(default_factory=dict)  # macros of protocol.pml
    symptom: str = "assertion violated"

    def macros(self) -> dict[str, object]:
        late = int(self.late)
        return {"NUM_RANKS": self.ranks, "DEFER": late, "LATE": late} | self.faults


ONE = {"recv_slots": 1, "combine_slots": 1}
STALLS = "invalid end state"
SAFE = (
    Case("hooks at once", "D C1 D C2 D C3", late=False),
    Case("late hooks", "D C1 D C2 D C3"),
    Case("two micro-batches", "D D C1 C2 D C3"),
    Case("two micro-batches, longer", "D D C1 C2 D D C3 C4 D D", ranks=2),
    Case("a dispatch ahead", "D D C1 D C2 D C3"),
    Case("a dispatch ahead, pulled", "D D C1p D C2p D C3p"),
    Case("no combine", "D D D D D"),
    Case("several combines of a dispatch", "D C1 C1 C1 C1"),
    Case("the same, pulled", "D C1p C1p C1p D C2p"),
    Case("the same, in turn", "D C1 C1p C1p C1 C1 C1p D C2", ranks=2),
    Case("the second answered first", "D D C2 C1 D C3 D C4"),
    Case("the same slots, as a graph replays", "D C1 D C2 D C3 D C4", **ONE),
    Case("the same slots, pulled", "D C1p D C2p D C3p D C4p", **ONE),
    Case("the same slots, combines in a row", "D C1 C1p C1 D C2 C2p", **ONE),
    Case("the same slots, no combine", "D D D D D", **ONE),
    Case("one slot of recv, two of combine", "D C1 C1 D C2 C2 D C3", recv_slots=1),
    Case("two slots of recv, one of combine", "D D C1 C2 D C3", combine_slots=1),
    Case("one slot again and again, a hook late for long", "D/0 D/1 D/1 C3/0 D/1 C4/0 C1/1"),
    Case("replays between other calls", "D/1 D/0 C1/1 C2/0 D/0 C3/0 D/0 C4/0 D/1 C5/1"),
    Case("slots in any order", "D/0 C1/1 C1/1 C1/0 C1/0 C1/1 C1/0 C1/0"),
    Case("the same, by the shorter rule", "D/0 C1/1 C1/1 C1/0 C1/0 C1/1", credit=last_or_before),
    Case("no credit, hooks at once", "D C1 C1 C1 D C2", late=False, credit=no_credit),
    Case("one slot of counts, hooks at once", "D D D", late=False, faults={"COUNTS_SLOTS": 1}),
)

fault = partial(Case, ranks=2)  # enough for each of them
UNSAFE = (
    fault("one slot of recv, a late hook", "D D D", recv_slots=1, forgets=True),
    fault("one slot of combine, credit of two back", "D C1 C1", credit=two_back, **ONE),
    fault("the same, pulled", "D C1p C1p", credit=two_back, **ONE),
    fault("no credit, late", "D C1 C1 C1", credit=no_credit),
    fault("no credit, late, pulled", "D C1p C1p C1p", credit=no_credit),
    fault("credit of one combine earlier", "D C1 C1 C1 C1", credit=one_earlier),
    fault("consumed told before reading", "D C1 C1 C1", faults={"CONSUMED": "sent_combines"}),
    fault("one slot of counts, a late hook", "D D D", faults={"COUNTS_SLOTS": 1}),
    fault("one word for combines", "D D C1 C2", faults={"COMBINED_WORDS": 1}),
    fault("counts of an older epoch", "D D", faults={"COUNTS_LESS": 1}),
    fault("rows of an older epoch", "D D", faults={"ROWS_LESS": 1}),
    fault("outputs of an older epoch", "D C1 C1", faults={"COMBINED_LESS": 1}),
    fault("ranks choose different slots", "D D", faults={"SLOTS_DIFFER": 1}),
    fault("consumed told with dispatches only", "D C1 C1 C1", faults={"TELLS": 0}, symptom=STALLS),
)
