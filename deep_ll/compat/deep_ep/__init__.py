"""`import deep_ep` that is deep_ll: for programs that call DeepEP's low-latency mode.

    import deep_ll.compat.deep_ep

    deep_ll.compat.deep_ep.install()
    import deep_ep  # from here on deep_ll

docs/deepep.md tells which of DeepEP's rules hold then, and what is not there.
"""

from deep_ll.compat.deep_ep.alias import install, path, uninstall
from deep_ll.compat.deep_ep.buffer import Buffer

__all__ = ["Buffer", "install", "path", "uninstall"]
