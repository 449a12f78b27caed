"""Commands that work on local files, logs, curves and scripts; most need no service."""
