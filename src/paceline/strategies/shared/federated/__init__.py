"""The two sides of federated averaging: the client program and the server program."""
