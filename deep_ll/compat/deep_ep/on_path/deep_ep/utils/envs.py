"""Where DeepEP 2 has what is about the machine."""

from deep_ll.compat.deep_ep.helpers import (
    check_nvlink_connections,
    check_torch_deterministic,
    init_dist,
)

__all__ = ["check_nvlink_connections", "check_torch_deterministic", "init_dist"]
