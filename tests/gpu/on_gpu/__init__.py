"""The sections of benchmarks/gpu_check.py: each asks a GPU one question, in its own process.

`device` and `host_device` are the seam: the same sections run on a GPU, or on CPU tensors with the
CPU's build of the kernels behind a fake driver, which proves the sections themselves.
"""
