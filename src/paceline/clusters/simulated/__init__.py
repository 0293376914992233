"""Virtual time: the kernel, the network, messages, and the contexts of its ranks."""
