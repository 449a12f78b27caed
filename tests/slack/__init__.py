"""Slack: what is sent, what comes back, and what nobody may do."""
