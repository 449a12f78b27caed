"""The judge of a played story, what the service could have known in it, and what is counted."""
