"""Parts that the rules of a run share: resume points, rollbacks, submissions, first responses. Pure."""
