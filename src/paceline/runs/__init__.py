"""The result of a training run: its history, its trace, its summary, and its files."""
