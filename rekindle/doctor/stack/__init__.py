"""Checks of Rekindle's own stack and of protected Jobs."""
