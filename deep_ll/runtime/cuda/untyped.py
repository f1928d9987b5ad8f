"""What comes from packages without types: cuda-python, nvshmem4py, nvidia-ml-py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import TypeAlias

Untyped: TypeAlias = Any
