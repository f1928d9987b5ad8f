"""What compiled kernels must and must not contain, read with cuobjdump and nvdisasm."""
