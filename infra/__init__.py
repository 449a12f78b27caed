"""How Rekindle gets into an AWS account: the template, its policies, the package build and the deployment."""
