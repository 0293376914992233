"""Workers that an external launcher has started: torchrun, mpirun, srun."""
