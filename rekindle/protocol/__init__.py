"""The wire between the service, the monitor and the agents: one definition of each message. Standard library only."""
