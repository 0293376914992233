"""Workers that somebody else has started: torchrun, mpirun, srun."""
