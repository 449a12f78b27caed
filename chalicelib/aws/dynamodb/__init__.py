"""The one table: Incidents, Jobs, switches, deliveries and the rest, one module per kind of item."""
