"""The Slack app's manifest."""
