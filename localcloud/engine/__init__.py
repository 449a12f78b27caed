"""Lambda durable functions on the embedded cloud's clock."""
