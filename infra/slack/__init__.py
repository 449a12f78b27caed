"""The Slack app's manifest, with this deployment's addresses: `python -m infra.slack https://…` prints it."""
