"""Everything that knows Slurm's commands, their output and its files. `build.build` puts it together."""
