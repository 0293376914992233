"""Workers on a Ray cluster: actors, placed on its hosts."""
