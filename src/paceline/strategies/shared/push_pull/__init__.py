"""The two sides of the parameter server: the worker program and the server program."""
