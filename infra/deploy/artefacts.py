"""What a deployment puts into a bucket: the bundle, and the template with what only this deployment knows."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.package import BUNDLE, TEMPLATE
from infra.target_stack import NAME, DeploymentError


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefacts:
    """Of one stack. `session` is a boto3 Session with account and Region settled."""

    session: Any
    stack: str

    def upload(self, package: Path, bucket: str | None) -> str:
        """Bundle and settled template, in `bucket` or the account's own; the template's address."""
        bucket = bucket or self._own_bucket()
        self._s3().put_object(Bucket=bucket, Key=_bundle_key(package), Body=(package / BUNDLE).read_bytes())
        body = self._template(package, bucket)
        key = f"{hashlib.sha256(body).hexdigest()}.json"
        self._s3().put_object(Bucket=bucket, Key=key, Body=body)
        return self._url(bucket, key)

    @contextmanager
    def lent_template(self, package: Path, bucket: str | None) -> Iterator[str]:
        """The template's address while this lasts, under a key of its own. Where there is no bucket for it yet, in one
        that goes again. Code is not looked at before a change set is executed, so no bundle is needed."""
        s3, target = self._s3(), bucket or self._artefacts_name()
        is_there = bucket is not None or self._has_bucket(target)
        place = target if is_there else f"{NAME}-artefacts-plan-{uuid.uuid4().hex}"
        body = self._template(package, target)
        key = f"plan-{uuid.uuid4().hex}.json"
        if not is_there:
            self._make_bucket(place)
        try:
            s3.put_object(Bucket=place, Key=key, Body=body)
            yield self._url(place, key)
        finally:
            s3.delete_object(Bucket=place, Key=key)
            if not is_there:
                s3.delete_bucket(Bucket=place)

    def _own_bucket(self) -> str:
        """A private bucket for bundles, made on first use, one per account and Region."""
        name = self._artefacts_name()
        if not self._has_bucket(name):
            self._make_bucket(name)
        return name

    def _artefacts_name(self) -> str:
        account = self.session.client("sts").get_caller_identity()["Account"]
        return f"{NAME}-artefacts-{account}-{self.session.region_name}"

    def _has_bucket(self, name: str) -> bool:
        from botocore.exceptions import ClientError

        try:
            account = self.session.client("sts").get_caller_identity()["Account"]
            self._s3().head_bucket(Bucket=name, ExpectedBucketOwner=account)
        except ClientError as err:
            if err.response["Error"]["Code"] not in ("404", "NoSuchBucket"):
                raise DeploymentError(f"the artefact bucket {name} cannot be used: {err}") from err
            return False
        return True

    def _make_bucket(self, name: str) -> None:
        s3, region = self._s3(), self.session.region_name
        where = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        s3.create_bucket(Bucket=name, **where)
        s3.put_public_access_block(
            Bucket=name,
            PublicAccessBlockConfiguration={
                "BlockPublicAcls": True,
                "BlockPublicPolicy": True,
                "IgnorePublicAcls": True,
                "RestrictPublicBuckets": True,
            },
        )

    def _template(self, package: Path, bucket: str) -> bytes:
        """The template as this deployment has it."""
        template = json.loads((package / TEMPLATE).read_text(encoding="utf-8"))
        self.settle(template, code={"Bucket": bucket, "Key": _bundle_key(package)})
        return json.dumps(template, sort_keys=True).encode()

    def _url(self, bucket: str, key: str) -> str:
        """By URL: a template given inline may have 51,200 bytes only (CloudFormation quotas)."""
        suffix = "amazonaws.com.cn" if self.session.region_name.startswith("cn-") else "amazonaws.com"
        return f"https://{bucket}.s3.{self.session.region_name}.{suffix}/{key}"

    def settle(self, template: dict[str, Any], *, code: Mapping[str, str]) -> None:
        """Write into the template what only this deployment knows.

        The names of what is kept become plain text: CloudFormation takes up an existing resource only where its name
        is no function. Source: CloudFormation guide, import-resources-automatically.
        """
        for resource in template["Resources"].values():
            properties = resource.get("Properties", {})
            if resource["Type"] == "AWS::Serverless::Function":
                properties["CodeUri"] = dict(code)
            if resource.get("DeletionPolicy") == "Retain":
                for name in ("TableName", "BucketName"):
                    if name in properties:
                        properties[name] = self._plain(properties[name])

    def _plain(self, name: Any) -> str:
        text = name["Fn::Sub"] if "Fn::Sub" in name else f"${{{name['Ref']}}}"
        known = {
            "AWS::StackName": self.stack,
            "AWS::AccountId": self.session.client("sts").get_caller_identity()["Account"],
            "AWS::Region": self.session.region_name,
        }
        return re.sub(r"\$\{([A-Za-z:]+)\}", lambda found: known[found[1]], text)

    def _s3(self) -> Any:
        return self.session.client("s3")


def _bundle_key(package: Path) -> str:
    """Made from its content: an unchanged bundle makes no new version of a function."""
    return f"{hashlib.sha256((package / BUNDLE).read_bytes()).hexdigest()}.zip"
