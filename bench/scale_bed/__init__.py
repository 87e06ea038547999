"""Stand-ins of `bench.scale`: srun, ranks, and a crowd of agents in one process."""
