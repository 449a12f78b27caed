"""What a node's Incident remembers and how many nodes may be in repair. Pure."""
