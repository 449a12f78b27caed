"""What all parts of the monitor use: clock, settings, identity, guarded calls, worker threads."""
