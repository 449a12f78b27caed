"""Which service a command speaks to, and where the service's own sources are."""
