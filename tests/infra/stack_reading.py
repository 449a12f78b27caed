"""How the tests of this folder read a template."""

from __future__ import annotations

from typing import Any

REGION = "eu-west-1"
CODE = {"Bucket": "artefacts-of-the-test", "Key": "deployment.zip"}
DEFAULTS = {
    "NoticeEmail": "",
    "TrainingRoleArns": "",
    "TrainingBuckets": "",
    "KmsKeyArns": "",
    "EventConcurrency": "0",
    "LogRetentionDays": "30",
}

Template = dict[str, Any]


def of_type(template: Template, kind: str) -> dict[str, Any]:
    """Logical id -> properties of every resource of one type."""
    return {
        name: resource.get("Properties", {})
        for name, resource in template["Resources"].items()
        if resource["Type"] == kind
    }
