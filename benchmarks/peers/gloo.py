"""torch.distributed's all_to_all_single over gloo: what comes with torch."""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor

from benchmarks.peers.common import AllToAllPeer


class Gloo(AllToAllPeer):
    """One rank."""

    def all_to_all(
        self, target: Tensor, source: Tensor, received: list[int], sent: list[int]
    ) -> None:
        dist.all_to_all_single(target, source, received, sent, group=self.group)
