"""The rules of a node's own Incident: drain, repair, check, return. Pure."""
