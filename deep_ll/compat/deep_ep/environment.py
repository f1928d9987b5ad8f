"""The variables that DeepEP's Buffer writes into the environment of its process."""

from __future__ import annotations

import os
import warnings

_P2P = "NVSHMEM_DISABLE_P2P"
_NODES_NVLINK = "NVSHMEM_DISABLE_MNNVL"


def write(num_qps_per_rank: int, allow_nvlink: bool | None, allow_mnnvl: bool) -> None:
    """Writes them as DeepEP does, over what was there: a program may read them back.

    One difference: without `allow_nvlink` (None) a NVSHMEM_DISABLE_P2P that is set stays. With it
    the argument is followed, as in DeepEP, and a contradiction is worth one warning.
    """
    before = os.environ.get(_P2P)
    if allow_nvlink is not None or before is None:
        wanted = "1" if allow_nvlink is False else "0"
        if before is not None and before != wanted:
            warnings.warn(
                f"allow_nvlink_for_low_latency_mode={allow_nvlink} contradicts {_P2P}={before} in "
                f"the environment: the argument is followed and {wanted} written, as DeepEP does",
                stacklevel=3,
            )
        os.environ[_P2P] = wanted
    os.environ["NVSHMEM_IB_ENABLE_IBGDA"] = "1"
    os.environ["NVSHMEM_IBGDA_NUM_RC_PER_PE"] = str(num_qps_per_rank)
    os.environ.setdefault("NVSHMEM_QP_DEPTH", "1024")
    os.environ["NVSHMEM_MAX_TEAMS"] = "7"
    os.environ["NVSHMEM_DISABLE_NVLS"] = "1"
    os.environ["NVSHMEM_CUMEM_GRANULARITY"] = str(1 << 29)
    if not allow_mnnvl:
        os.environ[_NODES_NVLINK] = "1"
