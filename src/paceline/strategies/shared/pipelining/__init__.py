"""Code shared by the strategies in which each rank holds some segments of the model."""
