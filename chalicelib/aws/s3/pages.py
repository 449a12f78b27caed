"""Incidents' pages in the stack's own bucket, each under one key, and signed links to them.

A link is signed with the credentials of the function that makes it, so it opens what that function's role may read,
and ends with those credentials even if it was made to last longer.
Source: S3 user guide, "Download and upload objects with presigned URLs" (using-presigned-url): the credentials are the
signer's. AWS re:Post, knowledge center, presigned-url-s3-bucket-expiration: a URL that was made with a temporary token
expires when the token does.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final
from urllib.parse import quote

from chalicelib.aws.errors import AwsRefusal, call
from chalicelib.ports.clock import Clock
from chalicelib.ports.notices import PageLink

PREFIX: Final = "incident-pages/"
CONTENT_TYPE: Final = "text/html; charset=utf-8"
_MISSING: Final = ("NoSuchKey", "404")


def key_of(incident_id: str) -> str:
    """Where an Incident's page lies; an id with other characters than its own stays one name within the folder."""
    return f"{PREFIX}{quote(incident_id, safe='')}.html"


class S3Pages:
    """ports.IncidentPages; `client` is a boto3 S3 client."""

    def __init__(self, client: Any, *, bucket: str, clock: Clock) -> None:
        self._client = client
        self._bucket = bucket
        self._clock = clock

    def put(self, incident_id: str, page: str) -> None:
        call(
            self._client.put_object,
            Bucket=self._bucket,
            Key=key_of(incident_id),
            Body=page.encode(),
            ContentType=CONTENT_TYPE,
            CacheControl="no-store",
        )

    def link(self, incident_id: str, *, lasts: timedelta) -> PageLink | None:
        """See ports.IncidentPages. The page is asked for first: S3 signs links to what is not there as well."""
        try:
            there = call(self._client.head_object, expect=_MISSING, Bucket=self._bucket, Key=key_of(incident_id))
        except AwsRefusal:
            return None
        now = self._clock.now()
        url = self._client.generate_presigned_url(
            "get_object",
            Params={"Bucket": self._bucket, "Key": key_of(incident_id)},
            ExpiresIn=int(lasts.total_seconds()),
        )
        return PageLink(url=str(url), until=now + lasts, written_at=there["LastModified"])
