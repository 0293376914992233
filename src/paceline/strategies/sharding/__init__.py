"""What the strategies have in common whose ranks share the optimizer's state, gradients or parameters."""
