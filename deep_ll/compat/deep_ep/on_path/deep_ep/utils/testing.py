"""Where DeepEP 2 has what its tests measure with."""

from deep_ll.compat.deep_ep.timing import bench, bench_kineto

__all__ = ["bench", "bench_kineto"]
