"""Benchmarks of deep_ll: README.md tells how they measure."""
