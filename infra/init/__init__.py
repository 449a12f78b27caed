"""`rekindle init`: from an account to a protected job, with the files that are missing.

It reads the account, writes documents and commands into a folder, and makes no call that changes anything: who
sets up a job mostly has no rights over IAM, and files can be reviewed. What cannot be read is unknown, and named.
"""
