"""Who is in Slack's user groups, remembered for some minutes: a press is answered within seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from chalicelib.channels.channel import Secrets
from chalicelib.domain.notices.channels import SlackConfig
from chalicelib.ports.clock import Clock

MEMORY: Final = timedelta(minutes=5)
TIMEOUT_S: Final = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackGroups:
    """One who leaves a group may press for MEMORY longer."""

    secrets: Secrets
    clock: Clock
    timeout_s: float = TIMEOUT_S
    _known: dict[tuple[str, str], tuple[datetime, frozenset[str]]] = field(default_factory=dict)

    def members(self, config: SlackConfig, group: str) -> frozenset[str]:
        """Raises RecoveryError where Slack cannot be asked."""
        now, key = self.clock.now(), (config.token_secret, group)
        found = self._known.get(key)
        if found is None or not timedelta(0) <= now - found[0] < MEMORY:
            from chalicelib.channels.slack.web_api import SlackApi

            api = SlackApi(
                lambda: self.secrets.secret(config.token_secret), url=config.api_url, timeout_s=self.timeout_s
            )
            found = self._known[key] = (now, api.group_members(group))
        return found[1]
