"""What an Incident cost and saved, and how it is reported: ledger, post-mortem, page. Pure."""
