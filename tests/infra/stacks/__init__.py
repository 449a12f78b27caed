"""CloudFormation of the embedded cloud: the life of a stack, over HTTP. moto's never fails half way."""
