"""A device for tests where there is no GPU: `device.cpp`. `device.py` defines it for torch.

Importing `stand_in.device` makes it known to torch for as long as the process lives. So tests do that in a process of
its own (`process.py`), into which it comes as a device's package does that is installed: by an entry point.
"""
