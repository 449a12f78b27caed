"""What the service works with: Signals, Incidents, Actions, Jobs, nodes and one observation of them. Data; pure."""
