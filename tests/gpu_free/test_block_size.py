"""How many warps a block has follows from the shared memory of the GPU."""

import pytest

from deep_ll import DeepLLError, _native
from deep_ll.kernels import block_warps

H100, L40, SMALL, NONE = 227 << 10, 99 << 10, 48 << 10, 16 << 10


@pytest.mark.parametrize(("max_shared", "warps"), [(H100, 16), (L40, 8), (SMALL, 4)])
@pytest.mark.parametrize("hidden", [128, 7168, 65536])
def test_as_many_warps_as_fit(max_shared: int, warps: int, hidden: int) -> None:
    shape = _native.Shape(8, 0, 64, 128, hidden, 8, 1)
    assert block_warps(shape, max_shared) == warps
    assert _native.Launches.shared_bytes(shape, warps) <= max_shared


def test_none_fit() -> None:
    with pytest.raises(DeepLLError, match="16384 bytes of shared memory"):
        block_warps(_native.Shape(8, 0, 64, 128, 7168, 8, 1), NONE)
