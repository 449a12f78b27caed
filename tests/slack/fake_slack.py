"""A server that speaks the part of Slack's Web API that we use, as docs.slack.dev has it, and misbehaves on order.

It checks what Slack checks (token, content type, blocks, sizes), keeps every state that a message ever had, and shows
messages in its history only after `lag` calls, as the real one may.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

from tests.canary import SLACK_TOKEN
from tests.slack.made import complaints

CONVERSATION = "C0REKINDLE"


@dataclass(frozen=True)
class Mood:
    """How one call goes wrong. `takes`: the call takes effect all the same."""

    status: int = 200
    error: str = ""
    retry_after: str | None = None
    takes: bool = False
    closes: bool = False  # the connection, without an answer
    hangs: bool = False  # until the server is told to go on
    body: str | None = None


@dataclass
class Posted:
    """One message, with all it ever showed."""

    ts: str
    channel: str
    thread_ts: str
    broadcast: bool
    metadata: dict[str, Any]
    states: list[dict[str, Any]] = field(default_factory=list)
    deleted: bool = False
    seen_from: int = 0

    @property
    def text(self) -> str:
        return str(self.states[-1]["text"])

    @property
    def words(self) -> str:
        return json.dumps(self.states[-1], ensure_ascii=False)


class FakeSlack:
    """The server. Use as a context; `url` is what the app takes for https://slack.com/api/."""

    def __init__(self) -> None:
        self.messages: list[Posted] = []
        self.calls: list[str] = []
        self.ephemeral: list[dict[str, Any]] = []
        self.groups: dict[str, list[str]] = {}
        self.lag = 0
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        self._moods: dict[str, deque[Mood]] = {}
        self._lock = threading.Lock()
        self._clock = 0
        self.go_on = threading.Event()

    def __enter__(self) -> FakeSlack:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.take(self)

            def log_message(self, *_: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(60)

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.base}/api/"

    @property
    def response_url(self) -> str:
        return f"{self.base}/actions/T1/1/secretpart"

    def next(self, method: str, *moods: Mood) -> None:
        """The next calls of this method go like this."""
        self._moods.setdefault(method, deque()).extend(moods)

    def roots(self) -> list[Posted]:
        return [message for message in self.messages if not message.thread_ts and not message.deleted]

    def replies(self, root: Posted) -> list[Posted]:
        return [message for message in self.messages if message.thread_ts == root.ts and not message.deleted]

    def count(self, method: str) -> int:
        return self.calls.count(method)

    def take(self, request: BaseHTTPRequestHandler) -> None:
        raw = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        method = request.path.removeprefix("/api/")
        with self._lock:
            self.calls.append(method)
            moods = self._moods.get(method)
            mood = moods.popleft() if moods else Mood()
            wrong = bool(mood.error or mood.status != 200 or mood.closes or mood.hangs or mood.body is not None)
            answer = {} if wrong and not mood.takes else self._answer(method, request, raw)
        if mood.hangs:
            self.go_on.wait(120)
        if mood.closes or mood.hangs:
            request.close_connection = True
            return
        if wrong:
            answer = {"ok": False, "error": mood.error} if mood.error else {}
        body = (mood.body if mood.body is not None else json.dumps(answer)).encode()
        request.send_response(mood.status)
        request.send_header("Content-Type", "application/json; charset=utf-8")
        request.send_header("Content-Length", str(len(body)))
        if mood.retry_after is not None:
            request.send_header("Retry-After", mood.retry_after)
        request.end_headers()
        request.wfile.write(body)

    def _answer(self, method: str, request: BaseHTTPRequestHandler, raw: bytes) -> dict[str, Any]:
        kind = request.headers.get("Content-Type", "")
        if method.startswith("/actions/"):
            self.ephemeral.append(json.loads(raw))
            return {"ok": True}
        if request.headers.get("Authorization") != f"Bearer {SLACK_TOKEN}":
            return {"ok": False, "error": "invalid_auth" if request.headers.get("Authorization") else "not_authed"}
        if kind.startswith("application/json"):
            asked = json.loads(raw)
        elif kind.startswith("application/x-www-form-urlencoded"):
            asked = {name: values[-1] for name, values in parse_qs(raw.decode()).items()}
        else:
            return {"ok": False, "error": "invalid_post_type"}
        if method == "usergroups.users.list":
            return {"ok": True, "users": self.groups.get(asked["usergroup"], [])}
        if asked.get("channel") != CONVERSATION:
            return {"ok": False, "error": "channel_not_found"}
        handlers = {
            "chat.postMessage": self._post,
            "chat.update": self._update,
            "conversations.history": self._history,
            "conversations.replies": self._history,
        }
        return handlers[method](asked)

    def _refusal(self, asked: dict[str, Any]) -> str:
        if not asked.get("text") and not asked.get("blocks"):
            return "no_text"
        if len(asked.get("text") or "") > 40_000:
            return "msg_too_long"
        blocks = asked.get("blocks") or []
        if sum(len(json.dumps(block, ensure_ascii=False)) for block in blocks) > 13_172:
            return "msg_blocks_too_long"
        return "invalid_blocks" if complaints(blocks) else ""

    def _post(self, asked: dict[str, Any]) -> dict[str, Any]:
        refusal = self._refusal(asked)
        if refusal:
            return {"ok": False, "error": refusal}
        thread_ts = asked.get("thread_ts", "")
        if thread_ts and not any(message.ts == thread_ts and not message.deleted for message in self.messages):
            return {"ok": False, "error": "thread_not_found"}
        self._clock += 1
        message = Posted(
            ts=f"{self.now().timestamp():.0f}.{self._clock:06d}",
            channel=asked["channel"],
            thread_ts=thread_ts,
            broadcast=bool(asked.get("reply_broadcast")),
            metadata=asked.get("metadata") or {},
            states=[{"text": asked["text"], "blocks": asked.get("blocks") or []}],
            seen_from=len(self.calls) + self.lag,
        )
        self.messages.append(message)
        return {"ok": True, "channel": message.channel, "ts": message.ts}

    def _update(self, asked: dict[str, Any]) -> dict[str, Any]:
        refusal = self._refusal(asked)
        found = next((message for message in self.messages if message.ts == asked["ts"] and not message.deleted), None)
        if refusal or found is None:
            return {"ok": False, "error": refusal or "message_not_found"}
        found.states.append({"text": asked["text"], "blocks": asked.get("blocks") or []})
        found.metadata = asked.get("metadata") or found.metadata
        return {"ok": True, "channel": found.channel, "ts": found.ts, "text": found.text}

    def _history(self, asked: dict[str, Any]) -> dict[str, Any]:
        thread = asked.get("ts", "")
        found = list(self._fitting(thread, float(asked["oldest"])))
        size, start = int(asked["limit"]), int(asked.get("cursor") or 0)
        page = found[::-1][start : start + size]
        shown = [{"ts": message.ts, "text": message.text, "metadata": message.metadata} for message in page]
        if asked.get("include_all_metadata") not in ("1", "true"):
            shown = [{"ts": message["ts"], "text": message["text"]} for message in shown]
        more = start + size < len(found)
        cursor = {"next_cursor": str(start + size) if more else ""}
        return {"ok": True, "messages": shown, "has_more": more, "response_metadata": cursor}

    def _fitting(self, thread: str, oldest: float) -> Iterator[Posted]:
        for message in self.messages:
            in_thread = (
                message.thread_ts == thread or message.ts == thread
                if thread
                else not message.thread_ts or message.broadcast
            )
            if (
                in_thread
                and not message.deleted
                and float(message.ts) > oldest
                and message.seen_from <= len(self.calls)
            ):
                yield message
