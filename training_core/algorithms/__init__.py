"""Pure functions of tensors, each with its formula and source; imports torch and nothing else."""
