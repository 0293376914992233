"""What if a run had been another one: without its slow rank, with faster links, more workers, another strategy."""
