"""The minute sweep: finds what lost events and lost wakes left behind."""
