"""Channels, alert sources and chat threads as data. Pure."""
