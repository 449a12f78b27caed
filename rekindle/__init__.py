"""Rekindle beside the training: monitor, command line, and the pure parts both sides share."""
