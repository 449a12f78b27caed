"""Payload -> Signal, one module per source. Pure: no clock, no I/O. A missing time is a malformed event, not "now"."""
