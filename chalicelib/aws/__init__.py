"""Ports made real with AWS clients; one module per AWS service."""
