"""The durable workflow and its steps: the only package that sees the durable SDK."""
