"""The embedded cloud: AWS on one machine, for the demo, for replay and for the tests."""
