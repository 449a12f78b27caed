"""The Slack channel: one message per Incident, its blocks, its Web API."""
