"""Settings from the environment: read once, in bootstrap; every missing or bad variable is named in one error."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chalicelib.domain.model.errors import Permanent

PRODUCTION_LOG_LEVEL: Final = "INFO"  # the embedded cloud and the tests of the API log at it too


class BadSettings(Permanent):
    """One or more environment variables are missing or wrong; the message lists them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where the service finds its resources. Names are set by the merge template."""

    region: str
    table: str
    bus: str
    bucket: str
    quarantine_url: str
    recover_function: str
    policy_prefix: str = "/rekindle/policies"
    topic: str = ""
    stage: str = "rekindle"
    log_level: str = PRODUCTION_LOG_LEVEL
    account: str = ""
    sweep_metrics_minutes: int = 1
    settings_prefix: str = "/rekindle"
    deliveries_url: str = ""
    undelivered_url: str = ""
    console_url: str = ""
    notice_link_hours: int = 4  # how long a link in a notice lasts; 0: none is put into any
    training_roles: tuple[str, ...] | None = None  # None: an older template, which sets no such variable

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Settings:
        """Raises BadSettings, which names every missing variable at once."""
        required = {
            "region": "AWS_REGION",
            "table": "REKINDLE_TABLE",
            "bus": "REKINDLE_BUS",
            "bucket": "REKINDLE_BUCKET",
            "quarantine_url": "REKINDLE_QUARANTINE_URL",
            "recover_function": "REKINDLE_RECOVER_FUNCTION",
        }
        optional = {
            "policy_prefix": "REKINDLE_POLICY_PREFIX",
            "topic": "REKINDLE_TOPIC",
            "stage": "REKINDLE_STAGE",
            "log_level": "REKINDLE_LOG_LEVEL",
            "account": "REKINDLE_ACCOUNT",
            "settings_prefix": "REKINDLE_SETTINGS_PREFIX",
            "deliveries_url": "REKINDLE_DELIVERIES_URL",
            "undelivered_url": "REKINDLE_UNDELIVERED_URL",
            "console_url": "REKINDLE_CONSOLE_URL",
        }
        missing = sorted(name for name in required.values() if not environ.get(name))
        if missing:
            raise BadSettings(f"missing environment variables: {', '.join(missing)}")
        values = {field: environ[name] for field, name in required.items()}
        values |= {field: environ[name] for field, name in optional.items() if environ.get(name)}
        roles = environ.get("REKINDLE_TRAINING_ROLES")
        return cls(
            **values,
            sweep_metrics_minutes=_whole(environ, "REKINDLE_SWEEP_METRICS_MINUTES", 1, low=1, high=60),
            notice_link_hours=_whole(environ, "REKINDLE_NOTICE_LINK_HOURS", 4, low=0, high=12),
            training_roles=None if roles is None else tuple(role for role in roles.split(",") if role),
        )


def _whole(environ: Mapping[str, str], name: str, default: int, *, low: int, high: int) -> int:
    text = environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= 2 and low <= int(text) <= high):
        raise BadSettings(f"{name} must be a whole number from {low} to {high}")
    return int(text)
