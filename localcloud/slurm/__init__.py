"""Slurm on one machine: a real lab of daemons, and a modelled controller."""
