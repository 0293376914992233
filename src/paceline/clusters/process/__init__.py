"""A rank in a real process: its operations, how it waits, its windows, its link to the driver."""
