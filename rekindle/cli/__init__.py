"""The operator's `rekindle` command: it speaks to the service's REST API and holds no logic of its own."""
