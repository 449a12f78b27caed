# Rekindle's packaged template as one CloudFormation stack. `rekindle stack package --out DIR` has put the template and the
# bundle beside this folder. What it is given and what it must not be: docs/terraform-cdk.md.

terraform {
  required_version = ">= 1.5"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "artifact_bucket" {
  type        = string
  description = "A bucket of yours in the same Region, for the template and the functions' bundle."
}

variable "artifact_prefix" {
  type        = string
  default     = "rekindle/"
  description = "What the names of both begin with in that bucket."
}

variable "package" {
  type        = string
  default     = ""
  description = "The folder that holds sam.json and deployment.zip. Empty = the one above this module."
}

variable "stage" {
  type        = string
  default     = "prod"
  description = "prod makes the stack rekindle, any other rekindle-STAGE."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,19}$", var.stage))
    error_message = "stage must be lower-case letters, digits and dashes, 20 at most."
  }
}

variable "tags" {
  type        = map(string)
  default     = {}
  description = "Further tags of the stack, which its resources get too."
}

locals {
  package    = var.package == "" ? "${path.module}/.." : var.package
  bundle     = "${local.package}/deployment.zip"
  bundle_key = "${var.artifact_prefix}${filesha256(local.bundle)}.zip"
  stack      = var.stage == "prod" ? "rekindle" : "rekindle-${var.stage}"

  # The packaged template names the bundle as a file beside it; CloudFormation wants it in S3.
  template = replace(
    file("${local.package}/sam.json"),
    "\"CodeUri\": \"./deployment.zip\"",
    "\"CodeUri\": ${jsonencode({ Bucket = var.artifact_bucket, Key = local.bundle_key })}",
  )
}

data "aws_s3_bucket" "artifacts" {
  bucket = var.artifact_bucket
}

resource "aws_s3_object" "bundle" {
  bucket = var.artifact_bucket
  key    = local.bundle_key
  source = local.bundle
}

resource "aws_s3_object" "template" {
  bucket       = var.artifact_bucket
  key          = "${var.artifact_prefix}${sha256(local.template)}.json"
  content      = local.template
  content_type = "application/json"
}

resource "aws_cloudformation_stack" "rekindle" {
  name         = local.stack
  template_url = "https://${data.aws_s3_bucket.artifacts.bucket_regional_domain_name}/${aws_s3_object.template.key}"
  capabilities = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
  parameters   = local.parameters
  tags         = merge(var.tags, { "rekindle:stack" = local.stack })

  depends_on = [aws_s3_object.bundle]
}

output "outputs" {
  value       = aws_cloudformation_stack.rekindle.outputs
  description = "Everything that the stack tells: ApiUrl, BucketName, TrainingPolicyArn and the others of its template."
}
