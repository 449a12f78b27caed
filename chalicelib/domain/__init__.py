"""The pure heart: words, tables, policy and decide(). Standard library only; no clock, I/O, environment or logging."""
