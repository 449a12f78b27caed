"""What is read and written in S3: mailboxes, checkpoints, reports, cluster state, Incident pages."""
