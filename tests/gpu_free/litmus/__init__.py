"""Which outcomes the PTX memory model allows: an exhaustive checker, and the questions that deep_ll
stands on.
"""
