"""Pictures of curves: scales and ticks, SVG, and PNG. Standard library only."""
