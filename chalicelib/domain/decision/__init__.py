"""What a rule is given and what it returns, and the steps of a decision that a guard may hold back. Pure."""
