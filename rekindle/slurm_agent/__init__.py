"""The agent on a Slurm head node: takes orders by SQS, runs Slurm's commands, publishes cluster state and events.

`python -m rekindle.slurm_agent`. docs/agent.md: what it does, needs and never does.
"""
