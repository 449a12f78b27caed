"""AWS on one machine: moto extended, held against botocore's models, sizes and IAM."""
