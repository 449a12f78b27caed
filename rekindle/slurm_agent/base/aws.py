"""The agent's AWS clients, and what their errors mean to it. Outbound HTTPS only; no right to describe anything.

Rights: `sqs:GetQueueUrl, ReceiveMessage, DeleteMessage` on its own queue, `s3:GetObject, PutObject` under
`clusters/<cluster>/` (and what the relay needs there), `events:PutEvents` on the stack's bus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

import boto3
import botocore.session
from botocore.config import Config
from botocore.credentials import CredentialProvider, RefreshableCredentials
from botocore.exceptions import BotoCoreError, ClientError, CredentialRetrievalError

from rekindle.compat import UTC
from rekindle.slurm_agent.base.ports import SlurmError

LONG_POLL_S: Final = 20  # Source: SQS, WaitTimeSeconds, at most 20
CONNECT_TIMEOUT_S: Final = 5
READ_TIMEOUT_S: Final = 30
LEASE_TIMEOUT_S: Final = 5  # a lease's term is a minute
ATTEMPTS: Final = 2  # the agent's own loops try again; a call that hangs on must not hold one up
_PASSING: Final = frozenset(
    {
        "InternalError",
        "InternalFailure",
        "InternalServiceError",
        "PriorRequestNotComplete",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
# The instance's role is being renewed: new credentials come by themselves.
_RENEWING: Final = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired"})
_DENIED: Final = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "IncompleteSignature",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "ResourceNotFoundException",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_NO_QUEUE: Final = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})

# botocore asks for new ones a quarter of an hour before the end: every five minutes. A role has its next ones as long
# before the old ones end. Source: EC2 user guide, retrieve security credentials from instance metadata.
CREDENTIALS_FOR: Final = timedelta(minutes=20)

AwsError: Final = (BotoCoreError, ClientError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """boto3's; safe to use from several threads. `lease` is S3 with short time limits, which tries once: a conditional
    write that is retried automatically refuses its own first try."""

    sqs: Any
    s3: Any
    events: Any
    lease: Any


class _Helpers(CredentialProvider):  # type: ignore[misc]  # botocore has no types
    """Those that root's helper reads, asked for again before any of a role can have ended."""

    METHOD = CANONICAL_NAME = "rekindle-helper"

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__()
        self._read = read

    def load(self) -> Any:
        found = self._fetched()
        if not found["access_key"]:
            return None
        return RefreshableCredentials.create_from_metadata(found, self._fetched, self.METHOD)

    def _fetched(self) -> dict[str, str]:
        ends = datetime.now(UTC) + CREDENTIALS_FOR
        try:
            return {**self._read(), "expiry_time": ends.isoformat()}
        except (OSError, SlurmError) as err:
            raise CredentialRetrievalError(provider=self.METHOD, error_msg=str(err)) from err


def make_clients(region: str | None, credentials: Callable[[], Mapping[str, Any]] | None = None) -> Clients:
    """credentials: see `privileged.credentials`; None where boto3 finds them itself.

    Raises: botocore's NoRegionError where none can be found.
    """
    core = botocore.session.get_session()
    if credentials is not None:
        core.get_component("credential_provider").insert_before("env", _Helpers(credentials))
    session = boto3.session.Session(region_name=region, botocore_session=core)

    def client(service: str, read_timeout_s: int, attempts: int = ATTEMPTS) -> Any:
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=read_timeout_s,
            retries={"total_max_attempts": attempts, "mode": "standard"},
            user_agent_extra="rekindle-agent",
        )
        return session.client(service, config=config)

    return Clients(
        sqs=client("sqs", LONG_POLL_S + READ_TIMEOUT_S),
        s3=client("s3", READ_TIMEOUT_S),
        events=client("events", READ_TIMEOUT_S),
        lease=client("s3", LEASE_TIMEOUT_S, attempts=1),
    )


def code_of(err: Exception) -> str:
    """AWS's error code, or the name of botocore's own error."""
    if isinstance(err, ClientError):
        return str(err.response.get("Error", {}).get("Code", "Unknown"))
    return type(err).__name__


def read_object(s3: Any, bucket: str, key: str, *, limit: int) -> bytes | None:
    """An object's first `limit` + 1 bytes, so that a reader sees one that is too long; None where nothing is there.

    `s3` is a boto3 client. Raises: AwsError.
    """
    try:
        body: bytes = s3.get_object(Bucket=bucket, Key=key)["Body"].read(limit + 1)
    except ClientError as err:
        if code_of(err) in ("NoSuchKey", "404"):
            return None
        raise
    return body


def is_away(err: Exception) -> bool:
    """True where the same call may work later without anyone's doing: no network, throttled, AWS's own trouble."""
    if isinstance(err, ClientError):
        status = err.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or status == 429 or code_of(err) in _PASSING | _RENEWING
    return isinstance(err, BotoCoreError)


def is_denied(err: Exception) -> bool:
    """True where a right or the thing itself is missing: only a person can end that, and no message is to blame."""
    if isinstance(err, ClientError):
        status = err.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status in (401, 403, 404) or code_of(err) in _DENIED
    return False


def is_no_queue(err: Exception) -> bool:
    return code_of(err) in _NO_QUEUE


def text_of(operation: str, err: Exception) -> str:
    """One line for people."""
    return f"{operation}: {code_of(err)}: {err}".replace("\n", " ")[:300]
