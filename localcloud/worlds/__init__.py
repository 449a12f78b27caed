"""A whole Rekindle on the embedded cloud, filled as tests and measurements want it."""
