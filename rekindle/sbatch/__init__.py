"""sbatch: its options, and the shell scripts that it is given. Pure, standard library only."""
