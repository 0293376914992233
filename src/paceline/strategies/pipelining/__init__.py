"""What the strategies have in common whose ranks each hold some segments of the model."""
