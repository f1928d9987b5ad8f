"""Where DeepEP 2 has what its tests compute."""

from deep_ll.compat.deep_ep.helpers import (
    calc_diff,
    hash_tensor,
    per_token_cast_back,
    per_token_cast_to_fp8,
)

__all__ = ["calc_diff", "hash_tensor", "per_token_cast_back", "per_token_cast_to_fp8"]
