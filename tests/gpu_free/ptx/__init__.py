"""Runs the PTX that nvcc makes of real kernels, on a CPU, for several GPUs at once.

Every lane has its own program counter, schedules are random, and a race detector knows the
memory model of PTX: orders, scopes and proxies. See README.md for what is modelled.
"""

from .errors import Fault, Hang, PtxError, Race, Unknown
from .machine import Machine, Stats
from .program import Program, load

__all__ = ["Fault", "Hang", "Machine", "Program", "PtxError", "Race", "Stats", "Unknown", "load"]
