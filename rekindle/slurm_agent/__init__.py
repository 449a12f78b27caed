"""The agent on a Slurm head node: orders in by SQS, Slurm commands out, what it sees onto the whiteboard and the bus.

`python -m rekindle.slurm_agent`. docs/agent.md tells what it does, needs and never does.
"""
