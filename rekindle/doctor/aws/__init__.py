"""Reading an AWS account and a cluster's documents for the checks. It only ever reads."""
