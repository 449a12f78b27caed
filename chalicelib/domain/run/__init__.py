"""Parts that the rules of a run share: resume points, roll-backs, submissions, first responses. Pure."""
