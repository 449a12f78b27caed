"""Slack's Web API as the channel uses it, over slack_sdk: four methods, and what each failure means.

A post is not idempotent, and Slack has no token that would make it so (slackapi/slack-api-specs issue 10). So no call
is retried here, and the caller can distinguish "not accepted" from "unknown": `OutcomeUnknown`.
"""

from __future__ import annotations

import http.client
import logging
import urllib.error
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError, SlackClientError

from chalicelib.channels.channel import SlowDown
from chalicelib.channels.slack.blocks import Message
from chalicelib.channels.slack.settings import SLACK, checked_url
from chalicelib.channels.slack.text import Element
from chalicelib.domain.model.errors import DependencyUnavailable, Permanent

TIMEOUT_S: Final = 10
EVENT_TYPE: Final = "rekindle_message"
_PAGES: Final = 5
_PAGE: Final = 100
_RETRY_AFTER_S: Final = 30.0  # where a 429 names no time. Source: docs.slack.dev, rate limits: it names whole seconds

# Sources: docs.slack.dev, errors of chat.postMessage and chat.update. What is in neither set is a refusal.
_RATE: Final = frozenset({"ratelimited", "rate_limited", "message_limit_exceeded"})
_MAYBE: Final = frozenset({"internal_error", "fatal_error", "service_unavailable", "request_timeout"})
# Mended by a person, and nothing is wrong with the notice: it is tried again, then kept among the dead letters.
_ACCESS: Final = frozenset(
    {"invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive", "org_login_required"}
)

_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.INFO)  # at debug level the library writes whole requests and answers


class OutcomeUnknown(DependencyUnavailable):
    """No answer, or one that says nothing: it may have taken effect."""


class Refused(Permanent):
    """Slack refused. `code` is its reason."""

    def __init__(self, method: str, code: str) -> None:
        super().__init__(f"Slack refused {method}: {code}"[:300])
        self.code = code


class SlackApi:
    """One workspace's API. `token` is asked for the bot token at each call, so that a new one is soon used."""

    def __init__(self, token: Callable[[], str], *, url: str = SLACK, timeout_s: float = TIMEOUT_S) -> None:
        self._token = token
        self._url = checked_url(url)
        self._timeout_s = timeout_s
        self.timeout = timedelta(seconds=timeout_s)

    def post(
        self, conversation: str, message: Message, *, mark: str, thread: str = "", broadcast: bool = False
    ) -> tuple[str, str]:
        """Post a message, or a reply in the thread `thread`: Slack's id of the conversation, and its `ts`.

        Raises:
            OutcomeUnknown: it may be there.
            SlowDown, DependencyUnavailable, Refused: it is not.
        """
        request = _body(conversation, message, mark)
        if thread:
            request |= {"thread_ts": thread, "reply_broadcast": broadcast}
        answer = self._call("chat.postMessage", request)
        return str(answer.get("channel") or conversation), str(answer["ts"])

    def update(self, conversation: str, ts: str, message: Message, *, mark: str) -> None:
        """Make an older message show this. Raises as `post`."""
        self._call("chat.update", {**_body(conversation, message, mark), "ts": ts})

    def find(self, conversation: str, *, mark: str, since: datetime, thread: str = "") -> str | None:
        """The `ts` of the message with this mark, posted after `since`; None if there is none.

        Raises:
            SlowDown, DependencyUnavailable: it is not known now.
            Refused: Slack does not let the app read the conversation.
        """
        request = {
            "channel": conversation,
            "oldest": f"{since.timestamp():.6f}",
            "limit": _PAGE,
            "include_all_metadata": True,
            **({"ts": thread} if thread else {}),
        }
        for _ in range(_PAGES):
            answer = self._call("conversations.replies" if thread else "conversations.history", request, form=True)
            for message in answer.get("messages") or ():
                metadata = message.get("metadata") or {}
                if metadata.get("event_type") == EVENT_TYPE and metadata.get("event_payload", {}).get("mark") == mark:
                    return str(message["ts"])
            cursor = (answer.get("response_metadata") or {}).get("next_cursor")
            if not cursor:
                break
            request["cursor"] = cursor
        return None

    def group_members(self, group: str) -> frozenset[str]:
        """The users of a user group. Raises as `find`."""
        answer = self._call("usergroups.users.list", {"usergroup": group}, form=True)
        return frozenset(str(user) for user in answer.get("users") or ())

    def _call(self, method: str, request: dict[str, Any], *, form: bool = False) -> Mapping[str, Any]:
        client = WebClient(
            token=self._token(),
            base_url=self._url,
            timeout=self._timeout_s,  # type: ignore[arg-type]  # handed to urllib, which takes fractions
            retry_handlers=[],
            logger=_LOG,
        )
        try:
            answer = client.api_call(method, params=request) if form else client.api_call(method, json=request)
        except SlackApiError as err:
            raise _meaning(method, err) from None  # its own text holds the whole answer
        except urllib.error.URLError as err:
            raise _network(method, err.reason) from None
        except (OSError, http.client.HTTPException, SlackClientError, ValueError) as err:
            raise _network(method, err) from None
        data = answer.data
        if not isinstance(data, dict) or (method.startswith("chat.") and "ts" not in data):
            raise OutcomeUnknown(f"{method}: the answer cannot be read")
        return data


def _body(conversation: str, message: Message, mark: str) -> dict[str, Any]:
    blocks: list[Element] = list(message.blocks)
    return {
        "channel": conversation,
        "text": message.text,
        "blocks": blocks,
        "metadata": {"event_type": EVENT_TYPE, "event_payload": {"mark": mark}},
        "parse": "none",
        "link_names": False,
        "unfurl_links": False,
        "unfurl_media": False,
    }


def _network(method: str, reason: object) -> Exception:
    """Refused connections and unknown hosts never carried the request; after any other error that is unknown."""
    kind = type(reason).__name__
    if isinstance(reason, ConnectionRefusedError) or kind == "gaierror":
        return DependencyUnavailable(f"{method}: Slack cannot be reached ({kind})")
    return OutcomeUnknown(f"{method}: no answer ({kind})")


def _retry_after(headers: Mapping[str, Any]) -> float:
    found = next((value for name, value in headers.items() if name.lower() == "retry-after"), None)
    value = found[0] if isinstance(found, list | tuple) and found else found
    try:
        return min(float(str(value)), 900.0)
    except ValueError:
        return _RETRY_AFTER_S


def _meaning(method: str, err: SlackApiError) -> Exception:
    answer = err.response
    status, body = int(answer.status_code), answer.data if isinstance(answer.data, dict) else {}
    code = str(body.get("error") or f"status {status}")
    if status == 429 or code in _RATE:
        return SlowDown(f"{method}: Slack wants fewer messages", retry_after_s=_retry_after(answer.headers))
    if status >= 500 or code in _MAYBE or " " in code:  # a code with spaces is the library's, about an unread body
        return OutcomeUnknown(f"{method}: Slack answered {status}")
    if code in _ACCESS:
        return DependencyUnavailable(f"{method}: Slack does not take the app's token: {code}")
    return Refused(method, code)
