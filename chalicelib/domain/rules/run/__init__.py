"""The rules of a run's Incident, one module per phase. Pure."""
