"""What all parts of the agent use: ports, clock, settings, the SQLite store, AWS clients."""
