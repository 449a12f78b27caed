"""What the rules of a run share: which reports are believed, resume points, rollbacks, submissions, first responses."""
