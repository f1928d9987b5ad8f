"""What deep_ll raises. Every message names the values and the cure."""

from __future__ import annotations


class DeepLLError(RuntimeError):
    """Base of all errors of this library."""


class ArgumentError(DeepLLError, ValueError):
    """A call was given something it cannot work with. Nothing was moved; the buffer is as
    before.
    """


class NormalModeError(DeepLLError, NotImplementedError):
    """A call of DeepEP's normal mode, which deep_ll does not have."""


class OrderError(DeepLLError):
    """Calls came in an order that cannot work: a hook called twice, a handle too old, a destroyed
    buffer.
    """


class PeerError(DeepLLError):
    """Ranks disagree, or one of them cannot be reached."""


class PeerTimeout(PeerError, TimeoutError):
    """A rank did not do its part in time. The message says who, in which phase, expected and
    seen.
    """


class LinkUnavailable(DeepLLError):
    """The path to other hosts cannot be opened. The message says on which ranks, why, and the
    cure.
    """


class HeapMemoryError(DeepLLError, MemoryError):
    """The heaps of the ranks on this host would not fit into its free memory."""


class GpuUnavailable(DeepLLError):
    """Something that GPUs need is not there. The message lists all of it, each with its cure."""


class DriverError(DeepLLError):
    """A call of the CUDA driver failed.

    Attributes:
        code: the CUresult, as a number.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[DriverError], tuple[str, int]]:
        """So that it survives the way from a rank process."""
        return DriverError, (str(self), self.code)
