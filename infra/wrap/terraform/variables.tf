# Written by `python -m infra.wrap` from the template's parameters.

variable "console_url" {
  type        = string
  default     = ""
  description = "Address of a console that you serve yourself, such as https://rekindle.example.com. Notices then lead to the Incident's page there. Empty = notices carry a signed link to a page in the stack's bucket."

  validation {
    condition     = can(regex("^(https://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?(/[A-Za-z0-9._~/-]{0,300})?)?$", var.console_url))
    error_message = "console_url must be the https address of a console, without a query."
  }
}

variable "event_concurrency" {
  type        = number
  default     = 0
  description = "How many of each function that takes events of training and agent roles run at once, reserved for it. A flood of such events then takes no concurrency from the recovery and the sweep, and its cost is bounded. 0 = no limit. AWS wants 100 unreserved in the account; a new account often has less than that."

  validation {
    condition     = var.event_concurrency >= 0 && var.event_concurrency <= 100
    error_message = "event_concurrency must be 0 to 100."
  }
}

variable "kms_key_arns" {
  type        = list(string)
  default     = []
  description = "ARNs of customer managed keys that encrypt the Jobs' buckets or the volumes of training jobs. Each key's own policy must let this account's IAM policies decide, as a new key's does."

  validation {
    condition     = alltrue([for one in var.kms_key_arns : can(regex("^(arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]{1,64})?$", one))])
    error_message = "kms_key_arns must be ARNs of keys; IAM takes no alias in their place."
  }
}

variable "log_retention_days" {
  type        = number
  default     = 30
  description = "How long the functions' logs are kept."

  validation {
    condition     = contains([1, 3, 5, 7, 14, 30, 60, 90, 180, 365], var.log_retention_days)
    error_message = "log_retention_days must be one of 1, 3, 5, 7, 14, 30, 60, 90, 180, 365."
  }
}

variable "notice_email" {
  type        = string
  default     = ""
  description = "Address that gets notices and alarms by e-mail (it must confirm once). Empty = nobody is subscribed."

  validation {
    condition     = can(regex("^([^@\\s]{1,64}@[^@\\s]{1,190})?$", var.notice_email))
    error_message = "notice_email must be an e-mail address, or empty."
  }
}

variable "notice_link_hours" {
  type        = number
  default     = 4
  description = "How long the signed link in a notice lasts at most, where no ConsoleUrl is given. Whoever has the link can read the page until then. 0 = notices carry no link, only the command that makes one."

  validation {
    condition     = var.notice_link_hours >= 0 && var.notice_link_hours <= 12
    error_message = "notice_link_hours must be 0 to 12."
  }
}

variable "sweep_metrics_minutes" {
  type        = number
  default     = 1
  description = "Every how many minutes the sweep reads a Job's metrics. GetMetricData costs about 0.86 USD per Job and month at 1."

  validation {
    condition     = var.sweep_metrics_minutes >= 1 && var.sweep_metrics_minutes <= 60
    error_message = "sweep_metrics_minutes must be 1 to 60."
  }
}

variable "training_buckets" {
  type        = list(string)
  default     = []
  description = "Names of further buckets in which Jobs keep their mailboxes and checkpoints, beside the stack's own."

  validation {
    condition     = alltrue([for one in var.training_buckets : can(regex("^([A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9])?$", one))])
    error_message = "training_buckets must be names of buckets."
  }
}

variable "training_log_pattern" {
  type        = string
  default     = "?Xid ?ECC ?NCCL ?CUDA ?Error ?error ?Traceback ?nan ?NaN ?killed ?Killed ?timeout ?Timeout ?\"out of memory\""
  description = "CloudWatch Logs filter pattern of that subscription: only lines that match it are sent, and paid for."

  validation {
    condition     = length(var.training_log_pattern) <= 1024
    error_message = "training_log_pattern must have 1024 characters at most."
  }
}

variable "training_log_signatures" {
  type        = string
  default     = "no"
  description = "\"yes\" subscribes the log_batch function to /aws/sagemaker/TrainingJobs, so that faults are seen in the lines that training jobs log. The log group must exist (it does once one training job has run)."

  validation {
    condition     = contains(["no", "yes"], var.training_log_signatures)
    error_message = "training_log_signatures must be one of no, yes."
  }
}

variable "training_role_arns" {
  type        = list(string)
  default     = []
  description = "ARNs of the SageMaker execution roles that resubmitted training jobs may run under. Empty = training jobs are watched and told about, and none is submitted again."

  validation {
    condition     = alltrue([for one in var.training_role_arns : can(regex("^(arn:aws[a-z-]*:iam::[0-9]{12}:role/[A-Za-z0-9+=,.@_/-]{1,576})?$", one))])
    error_message = "training_role_arns must be ARNs of roles, each spelled out."
  }
}
