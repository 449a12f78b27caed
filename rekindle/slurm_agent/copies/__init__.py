"""What is needed to submit a job again, and whether a copy equals its original."""
