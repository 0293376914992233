"""What a trace says about who is slow: whom the others waited for, and what a step would take without it."""
