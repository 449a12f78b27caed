"""Use cases: open, join and close Incidents, register Jobs, the minute sweep. No AWS here, only ports."""
