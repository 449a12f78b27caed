"""Each guardrail, and what tries to break it."""
