"""The proving ground: one simulated world in virtual time, in which what is seen and what is true come apart.

It drives the real service (ingest, intake, workflow, look, decide, perform, sweep, adapters) and holds the truth apart
from what each source shows. docs/proving.md says what it plays and what it does not.
"""
