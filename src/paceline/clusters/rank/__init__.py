"""What the rank of any world is: who it is, its loop, its logbook."""
