"""From a Signal to an Incident: whose run, news or trouble, open or join."""
