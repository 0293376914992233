"""One rank's model: flat parameters and gradients, optimizers, segments, and memory."""
