"""The lease of a cluster: of the agents on its head nodes only the one that holds it acts (ADR 0113)."""
