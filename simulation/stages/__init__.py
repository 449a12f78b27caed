"""The real service over the world's clients, a second stage of it beside the first, and its durable executions."""
