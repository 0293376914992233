"""Other training libraries, run and recorded like Paceline's strategies, for comparison."""
