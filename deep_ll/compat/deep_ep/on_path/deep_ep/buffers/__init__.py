"""Where DeepEP 2 has its buffers."""
