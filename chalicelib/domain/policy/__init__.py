"""What the user allows: the policy document, its fields and groups, the playbooks. Pure."""
