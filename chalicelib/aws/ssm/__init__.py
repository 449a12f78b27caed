"""Documents and secrets in Parameter Store: policies, prices, settings."""
