"""What is true of the runs, and the training side of each attempt: its trainer, its monitor, what it saves."""
