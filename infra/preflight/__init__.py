"""What would stop a deployment, found before anything is created: `python -m infra.preflight --stage STAGE`."""
