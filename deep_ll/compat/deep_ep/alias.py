"""Makes the name `deep_ep` importable, and takes it back."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from deep_ll.errors import OrderError

if TYPE_CHECKING:
    from types import ModuleType

_NAME = "deep_ep"
_FOLDER = str(Path(__file__).resolve().parent / "on_path")


def path() -> str:
    """The folder to put into PYTHONPATH, so that `import deep_ep` is deep_ll in a program that is
    not to be changed, and in all processes that it starts.
    """
    return _FOLDER


def install() -> ModuleType:
    """Lets `import deep_ep` find deep_ll from now on, in this process and in those that
    multiprocessing spawns from it, even if DeepEP is installed. May be called again.

    Returns:
        The module `deep_ep`.

    Raises:
        OrderError: DeepEP itself is imported already.
    """
    loaded = sys.modules.get(_NAME)
    if loaded is not None and not _is_ours(loaded):
        raise OrderError(
            f"deep_ep is imported already, from {getattr(loaded, '__file__', None)}: its users "
            "keep that one. Call deep_ll.compat.deep_ep.install() before anything imports deep_ep"
        )
    if _FOLDER not in sys.path:
        sys.path.insert(0, _FOLDER)
        importlib.invalidate_caches()
    return importlib.import_module(_NAME)


def uninstall() -> None:
    """Takes `deep_ep` back: the next `import deep_ep` finds DeepEP, or fails. Who imported it
    before keeps what it has.
    """
    while _FOLDER in sys.path:
        sys.path.remove(_FOLDER)
    importlib.invalidate_caches()
    loaded = sys.modules.get(_NAME)
    if loaded is not None and _is_ours(loaded):
        for name in [name for name in sys.modules if name.split(".")[0] == _NAME]:
            del sys.modules[name]


def _is_ours(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve().is_relative_to(_FOLDER)
