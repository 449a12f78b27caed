"""The tags of SageMaker's resources: training jobs and clusters."""

from __future__ import annotations

from typing import Any, Final

from chalicelib.aws.errors import AwsRefusal, call

_MAX_PAGES: Final = 10  # a resource has 50 tags at most. Source: Tagging AWS resources user guide, limits


def tags_of(client: Any, arn: str, *, absent: tuple[str, ...] = ()) -> dict[str, str]:
    """All tags of a resource; none where SageMaker answers with one of the codes in `absent`.

    `client` is boto3's SageMaker client. Raises: RecoveryError.
    """
    tags: dict[str, str] = {}
    request = {"ResourceArn": arn}
    for _ in range(_MAX_PAGES):
        try:
            page = call(client.list_tags, expect=absent, **request)
        except AwsRefusal:
            return {}
        tags |= {tag["Key"]: str(tag.get("Value") or "") for tag in page.get("Tags", ())}
        if not page.get("NextToken"):
            break
        request["NextToken"] = page["NextToken"]
    return tags
