"""Commands that read the service and change nothing."""
