"""S3, SageMaker and CloudWatch in memory, at boto3's own level."""
