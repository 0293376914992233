"""A rank in a real process: operations, waiting, windows, and its link to the driver."""
