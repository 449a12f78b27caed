"""What the service and the agent on a Slurm head node say to each other: one definition for both sides. Pure.

Orders go through the cluster's SQS queue, answers and news over the event bus. Everything that has to be *read again*
is the cluster state: objects in the stack's bucket that only the agent writes, so that they are never
out of order, and that the service reads before each decision. An event that is lost costs time, never the truth.
"""
