"""Which Signals are believed: a claim is weighed against heartbeats, nodes and other sources. Pure."""
