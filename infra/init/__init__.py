"""`rekindle init`: from an account to a protected job, with the files that are missing."""
