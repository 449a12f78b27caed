"""A story: its runs, troubles and times, and how its sources go wrong. What making, playing and judging share."""
