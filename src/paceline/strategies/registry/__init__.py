"""The table of strategies, their descriptions, and the names that other systems use."""
