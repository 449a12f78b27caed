"""A boto3 Session that can work, or one error that says what is missing and what to do."""

from __future__ import annotations

from typing import Any, Final

# What STS answers to credentials that it does not take. Source: STS API reference, common errors.
_REMEDIES: Final = {
    "ExpiredToken": "the credentials have expired: sign in again (`aws sso login`, or fetch new ones)",
    "ExpiredTokenException": "the credentials have expired: sign in again (`aws sso login`, or fetch new ones)",
    "RequestExpired": "AWS finds the request too old: set this machine's clock",
    "InvalidClientTokenId": "AWS does not know the access key, or the Region is not enabled in this account: "
    "check AWS_PROFILE, and the Regions of the account",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key: check both, and this machine's clock",
}


class SessionError(Exception):
    """Nothing can be asked of AWS; the message says why and what to do."""


def open_session(region: str | None) -> Any:
    """A session with Region and credentials that AWS takes.

    Raises:
        SessionError: one of them is missing or refused.
    """
    import boto3
    from botocore import exceptions

    try:
        session = boto3.session.Session(region_name=region)
        credentials = session.get_credentials()
    except exceptions.BotoCoreError as err:
        raise SessionError(f"AWS settings cannot be read: {err}") from err
    if session.region_name is None:
        raise SessionError("no AWS Region: give --region, or set AWS_DEFAULT_REGION or a profile's region")
    if credentials is None:
        raise SessionError("no AWS credentials: run `aws configure` or `aws sso login`, or set AWS_PROFILE")
    try:
        session.client("sts").get_caller_identity()
    except (exceptions.SSOError, exceptions.TokenRetrievalError, exceptions.CredentialRetrievalError) as err:
        raise SessionError(f"{err}: sign in again (`aws sso login`)") from err
    except exceptions.ClientError as err:
        code = str(err.response.get("Error", {}).get("Code", ""))
        remedy = _REMEDIES.get(code, f"AWS does not accept these credentials: {err}")
        raise SessionError(f"{remedy} ({code})" if code in _REMEDIES else remedy) from err
    except exceptions.BotoCoreError as err:
        raise SessionError(f"AWS cannot be reached: {err}; check the network, the proxy and the Region") from err
    return session
