# Written by `python -m infra.wrap` from the template's parameters.

locals {
  parameters = {
    ConsoleUrl            = var.console_url
    EventConcurrency      = tostring(var.event_concurrency)
    KmsKeyArns            = join(",", var.kms_key_arns)
    LogRetentionDays      = tostring(var.log_retention_days)
    NoticeEmail           = var.notice_email
    NoticeLinkHours       = tostring(var.notice_link_hours)
    SweepMetricsMinutes   = tostring(var.sweep_metrics_minutes)
    TrainingBuckets       = join(",", var.training_buckets)
    TrainingLogPattern    = var.training_log_pattern
    TrainingLogSignatures = var.training_log_signatures
    TrainingRoleArns      = join(",", var.training_role_arns)
  }
}
