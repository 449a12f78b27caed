"""A platform that the service has never heard of: what it can do, its machines, its Scheduler and its agent."""
