"""The kernels of this installation: which fatbin serves a shape, and how large a launch is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from deep_ll import _native
from deep_ll.errors import DeepLLError
from deep_ll.runtime.cuda.driver import LaunchConfig, Module
from deep_ll.runtime.cuda.images import FOLDER, description

if TYPE_CHECKING:
    from pathlib import Path

    from deep_ll.kinds import Kind, Sizes
    from deep_ll.runtime.cuda.device import Device
    from deep_ll.runtime.cuda.driver import Kernel

__all__ = ["FOLDER", "Kernels", "block_warps", "description", "tier_of"]

_BLOCK_WARPS = (16, 8, 4)
_WARP_LANES = 32


def tier_of(hidden: int) -> str:
    """The name of the kernels for rows of `hidden` channels."""
    named = f"h{hidden}"
    return named if named in description()["tiers"] else "any"


def block_warps(shape: _native.Shape, max_shared_bytes: int) -> int:
    """Warps of a block: as many as its shared memory is enough for.

    Raises:
        DeepLLError: not even the fewest fit.
    """
    for warps in _BLOCK_WARPS:
        if _native.Launches.shared_bytes(shape, warps) <= max_shared_bytes:
            return warps
    raise DeepLLError(
        f"a block of this GPU can have {max_shared_bytes} bytes of shared memory, rows of "
        f"{shape.hidden} channels need {_native.Launches.shared_bytes(shape, _BLOCK_WARPS[-1])}"
    )


class _Loaded(NamedTuple):
    """The kernels of one kind of exchange."""

    dispatch: Kernel
    combine: Kernel
    credit: Kernel
    warps: int
    shared_bytes: int


class Kernels:
    """Loads kernels and launches them.

    Args:
        device: where.
        num_sms: blocks of a launch. All of them must run at once, with those of other ranks on
            the same GPU.
        network: the fatbin of those that reach peers over a network; None: all peers are mapped.
    """

    def __init__(self, device: Device, num_sms: int, network: Path | None = None) -> None:
        self._device, self._num_sms, self._network = device, num_sms, network
        self._loaded: dict[Sizes, _Loaded] = {}
        self._configs: dict[tuple[int, int, int], LaunchConfig] = {}

    def load(self, kind: Kind) -> None:
        """Loads the kernels of a kind. Not while a CUDA graph is captured."""
        # Those for networks are for rows of any size.
        tier = tier_of(kind.sizes.hidden) if self._network is None else "any"
        facts = description()["tiers"][tier]
        fatbin = self._network or FOLDER / facts["file"]
        module = Module.load(fatbin.read_bytes(), self._device.index)
        warps = block_warps(kind.shape, self._device.max_shared_bytes)
        shared = _native.Launches.shared_bytes(kind.shape, warps)

        def get(kernel: str, num_bytes: int) -> Kernel:
            name = facts["kernels"][kernel]["name"]
            found = module.kernel(name, shared)
            if found.num_param_bytes != num_bytes:
                raise DeepLLError(
                    f"kernel {name} takes {found.num_param_bytes} bytes of parameters, this "
                    f"extension has {num_bytes}: they are of different builds, reinstall deep_ll"
                )
            return found

        sizes = _native.Launches.DISPATCH_BYTES, _native.Launches.COMBINE_BYTES
        kernels = get("dispatch", sizes[0]), get("combine", sizes[1]), get("credit", sizes[1])
        self._loaded[kind.sizes] = _Loaded(*kernels, warps, shared)

    def dispatch(self, kind: Kind, params: bytearray, stream: int) -> None:
        """Launches a dispatch."""
        kernels = self._loaded[kind.sizes]
        config = self._config(self._num_sms, kernels, stream)
        kernels.dispatch.launch(config, params, len(params))

    def combine(self, kind: Kind, params: bytearray, stream: int) -> None:
        """Launches a combine."""
        kernels = self._loaded[kind.sizes]
        config = self._config(self._num_sms, kernels, stream)
        kernels.combine.launch(config, params, len(params))

    def credit(self, kind: Kind, params: bytearray, stream: int) -> None:
        """Launches the wait for the memory of the next combine."""
        kernels = self._loaded[kind.sizes]
        config = self._config(1, kernels, stream)
        kernels.credit.launch(config, params, len(params))

    def _config(self, num_blocks: int, kernels: _Loaded, stream: int) -> LaunchConfig:
        key = num_blocks, kernels.shared_bytes, stream
        config = self._configs.get(key)
        if config is None:
            block = (kernels.warps * _WARP_LANES, 1, 1)
            config = LaunchConfig((num_blocks, 1, 1), block, kernels.shared_bytes, stream)
            self._configs[key] = config
        return config
