"""What can be wrong with a kernel, or with a run of it."""


class PtxError(Exception):
    """Base of all that the runner reports."""


class Race(PtxError):
    """Two accesses that the memory model does not order."""


class Hang(PtxError):
    """Nobody can go on, or nobody gets any further."""


class Fault(PtxError):
    """An access to what is not there, or a misuse of an instruction."""


class Unknown(PtxError):
    """An instruction that the runner does not know."""
