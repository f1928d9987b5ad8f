"""DeepEP's names, answered by deep_ll. There is only its low-latency mode: docs/deepep.md."""

import importlib

import deep_ll
from deep_ll import Config, EventOverlap, topk_idx_t
from deep_ll.compat.deep_ep import Buffer

__version__ = f"1.2.1+deep_ll.{deep_ll.__version__}"
__all__ = ["Buffer", "Config", "EventOverlap", "topk_idx_t"]

# DeepEP's own package has loaded them as well after `import deep_ep`.
for _name in ("buffer", "buffers.legacy", "utils"):
    importlib.import_module(f"{__name__}.{_name}")
