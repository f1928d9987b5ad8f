"""GPU sessions without a GPU: the fake driver runs each launch by the CPU's build of its phases."""
