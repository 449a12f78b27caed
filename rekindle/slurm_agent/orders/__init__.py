"""Orders from the queue: journal, verbs, answers."""
