"""Faults put into copies of csrc/, each with the runs that must notice it on simulated GPUs.

Each takes some seconds of a core to compile. Of the kinds in _HALVED every second one is put in by
default; DEEP_LL_MUTANTS=all puts in all of them.
"""

import os

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

_HALVED = ("sync", "copy", "number")
CHOSEN = [
    f"{kind}-{name}"
    for kind, table in _TABLES.items()
    for index, name in enumerate(table)
    if kind not in _HALVED or index % 2 == 0 or os.environ.get("DEEP_LL_MUTANTS") == "all"
]
