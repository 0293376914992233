"""A model in segments: where it can be cut, where to cut it, and how to compute its segments one by one."""
