"""DeepEP's normal mode, which deep_ll does not have: its names exist and say so."""

from __future__ import annotations

from typing import NoReturn

from deep_ll.errors import ArgumentError, NormalModeError


def _refuse(name: str) -> NoReturn:
    raise NormalModeError(
        f"{name} belongs to DeepEP's normal mode, for large batches, which deep_ll does not have: "
        "use low_latency_dispatch and low_latency_combine, which take up to 4096 tokens a rank; "
        "for more, call them several times, or use DeepEP itself"
    )


class Config:
    """The tuning of DeepEP's normal kernels. Cannot be made here."""

    def __init__(self, *_args: object, **_keywords: object) -> None:
        _refuse("Config")


class NormalMode:
    """The calls of DeepEP's Buffer that its normal mode needs. All but `set_num_sms` raise
    NormalModeError, a NotImplementedError.

    Attributes:
        num_sms: as `set_num_sms` left it.
    """

    num_sms: int = 20

    @staticmethod
    def set_num_sms(new_num_sms: int) -> None:
        """For callers of DeepEP: keeps the number that its normal kernels would use. It means
        nothing to low-latency calls, as in DeepEP; `num_sms` of the constructor does.
        """
        if new_num_sms < 0 or new_num_sms % 2 != 0:
            raise ArgumentError(f"set_num_sms({new_num_sms}): it must be an even number")
        NormalMode.num_sms = new_num_sms

    @staticmethod
    def get_dispatch_config(_num_ranks: int) -> Config:
        """Raises NormalModeError."""
        _refuse("Buffer.get_dispatch_config")

    @staticmethod
    def get_combine_config(_num_ranks: int) -> Config:
        """Raises NormalModeError."""
        _refuse("Buffer.get_combine_config")

    def get_dispatch_layout(self, *_args: object, **_keywords: object) -> NoReturn:
        """Raises NormalModeError."""
        _refuse("Buffer.get_dispatch_layout")

    def dispatch(self, *_args: object, **_keywords: object) -> NoReturn:
        """Raises NormalModeError."""
        _refuse("Buffer.dispatch")

    def combine(self, *_args: object, **_keywords: object) -> NoReturn:
        """Raises NormalModeError."""
        _refuse("Buffer.combine")

    def internode_dispatch(self, *_args: object, **_keywords: object) -> NoReturn:
        """Raises NormalModeError."""
        _refuse("Buffer.internode_dispatch")

    def internode_combine(self, *_args: object, **_keywords: object) -> NoReturn:
        """Raises NormalModeError."""
        _refuse("Buffer.internode_combine")
