"""What holds a decided step back: shadow mode, windows, the breaker, approvals. Pure."""
