"""Nodes, suspect hardware, and what people order: each guard has a test that tries to break it."""
