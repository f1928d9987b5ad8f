"""Ranks that are GPUs: launches, memory that peers map, and what has to be there first.

Nothing here is imported by `import deep_ll`, and no CUDA package by importing these modules: they
are optional, and load when first needed.
"""
