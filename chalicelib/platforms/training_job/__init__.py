"""SageMaker training jobs: status, stops, resubmission as a clone."""
