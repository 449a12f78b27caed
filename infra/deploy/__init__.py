"""Deploying and removing the stack, and the commands of `rekindle` that a checkout or the wheel adds for it."""
