"""A GPU, as the sections use it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

RESERVED_BYTES = (
    1 << 26,
    1 << 20,
    1 << 20,
    1 << 16,
)  # a large block of torch's allocator and small ones
COPIED_BYTES = 1 << 30


class CudaDevice:
    """torch's current GPU. `spoil` flips a bit of everything that is read back: a check that does
    not notice is worth nothing."""

    def __init__(self, spoil: bool = False) -> None:
        self.spoil = spoil

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        """A stream of this thread's own: ranks that share a GPU wait for each other's kernels."""
        with torch.cuda.stream(torch.cuda.Stream()):
            # While a peer's kernel waits for this rank, an allocation might wait for that kernel:
            # so torch gets its memory now.
            blocks = [
                torch.empty(size, dtype=torch.uint8, device="cuda") for size in RESERVED_BYTES
            ]
            del blocks
            yield

    def put(self, tensor: Tensor) -> Tensor:
        """A copy on the device, complete on the current stream."""
        return tensor.to("cuda")

    def get(self, tensor: Tensor) -> Tensor:
        """A copy on the CPU of what the current stream makes of it."""
        found = tensor.cpu()
        return spoiled(found) if self.spoil else found

    def do(self, work: Callable[[], object]) -> None:
        """Puts work of torch, which may be captured, on the current stream."""
        work()

    def synchronize(self) -> None:
        """Waits for the current stream alone."""
        torch.cuda.current_stream().synchronize()

    def capture(self, group: Any, work: Callable[[], None]) -> Callable[[], None]:
        """A graph of what `work` puts on the current stream, as a function that replays it there.
        Collective: the ranks take turns, since starting a capture waits for the whole GPU."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        for rank in range(group.size):
            group.barrier()
            if rank == group.rank:
                with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                    work()
        group.barrier()
        return graph.replay

    def seconds(self, work: Callable[[], object]) -> float:
        """How long the current stream takes for it."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def allocated_bytes(self) -> int:
        """What torch's tensors take."""
        return torch.cuda.memory_allocated()

    def copy_source(self) -> Tensor:
        """A tensor that no cache holds, to measure how fast memory is."""
        return torch.ones(COPIED_BYTES, dtype=torch.uint8, device="cuda")

    def num_sms(self) -> int:
        """Multiprocessors."""
        return torch.cuda.get_device_properties(0).multi_processor_count


def spoiled(tensor: Tensor) -> Tensor:
    """A copy with another first bit."""
    copy = tensor.clone(memory_format=torch.contiguous_format)
    if copy.numel():
        copy.view(-1).view(torch.uint8)[0] ^= 1
    return copy
