"""What only GPUs raise."""

from __future__ import annotations

from deep_ll.errors import DeepLLError


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
