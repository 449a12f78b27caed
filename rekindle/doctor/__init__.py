"""`rekindle doctor`: what is wrong with a cluster's files, a live cluster or a batch script, before it costs a night.

Pure checks (`request`, `provisioning`, `network`, `access`, `storage`, `capacity`, `live`, `batch_*`) take facts and
give findings; `account` is the only module that speaks to AWS, `examine` brings both together. `table` is the list of
all checks, each with its reason and its source.
"""
