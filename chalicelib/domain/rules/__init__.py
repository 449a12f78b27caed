"""The rules that `decide()` asks, in order: `run` for a run's Incident, `node` for a node's. Pure."""
