"""Python and the operating system: random numbers, signals, forked processes, errors in user code."""
