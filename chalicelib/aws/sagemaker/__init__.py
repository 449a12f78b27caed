"""HyperPod clusters, their nodes, and tags, through SageMaker's API."""
