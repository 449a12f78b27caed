"""How each platform stops, resubmits and reads its jobs."""
