"""Drills: which faults can be rehearsed, the assumed world, the report. Pure."""
