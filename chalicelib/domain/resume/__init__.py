"""Which checkpoint a new attempt resumes from: what is verified, what is passed over, how far back a loss goes."""
