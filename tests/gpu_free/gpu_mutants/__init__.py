"""Faults put into copies of csrc/, each with the runs that must notice it on simulated GPUs.

Each takes some seconds of a core to compile: by default all are put in that change orders, and
every second one of the other kinds.
"""

from faults import chosen

from .copies import COPIES
from .kinds import Mutant
from .network import NETWORKS
from .numbers import NUMBERS
from .orders import ORDERS
from .protocol import PROTOCOL
from .runs import RUNS, Run
from .syncs import SYNCS

__all__ = ["CHOSEN", "MUTANTS", "RUNS", "Mutant", "Run"]

_TABLES = {
    "order": ORDERS,
    "sync": SYNCS,
    "copy": COPIES,
    "protocol": PROTOCOL,
    "number": NUMBERS,
    "network": NETWORKS,
}
MUTANTS = {
    f"{kind}-{name}": mutant for kind, table in _TABLES.items() for name, mutant in table.items()
}

CHOSEN = [
    f"{kind}-{name}"
    for kind, table in _TABLES.items()
    for name in (table if kind == "order" else chosen(list(table)))
]
