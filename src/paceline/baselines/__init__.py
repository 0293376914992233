"""Other people's ways to train, run and recorded as our own are, so that the two can be compared."""
