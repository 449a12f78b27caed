"""Log-line signatures and the XID table, as data."""
