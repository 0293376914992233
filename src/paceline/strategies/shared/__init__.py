"""Role programs that several strategies share."""
