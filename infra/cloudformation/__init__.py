"""What a CloudFormation template says once its parameters are known."""
