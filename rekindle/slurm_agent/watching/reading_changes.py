"""What one reading has found so far: documents, news and memory, and what is to be remembered of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from rekindle.protocol.cluster.documents import AttemptDoc
from rekindle.protocol.cluster.names import attempt_key
from rekindle.slurm_agent.base.ports import News, NewsType, Reading
from rekindle.slurm_agent.watching.attempt_docs import job_news
from rekindle.slurm_agent.watching.context import ATTEMPT, KNOWN, LookMemory
from rekindle.slurm_agent.watching.owners import Owners

MAX_PROBLEMS: Final = 50
# A change of one of these is news; any other only changes the document.
NEWS: Final = ("state", "successor", "held", "nodes", "spec", "ended_by", "requeued_by", "is_known", "job_id", "policy")


class ReadingChanges:
    """`held` is what the reading before has left, and is changed here."""

    def __init__(self, held: LookMemory, owners: Owners, now: datetime) -> None:
        self.held = held
        self.documents: dict[str, bytes] = {}
        self.memory: dict[str, bytes | None] = {}
        self.problems: list[str] = []
        self._news: list[News] = []
        self._owners = owners
        self._now = now

    def starts_of(self, number: int) -> list[AttemptDoc]:
        """The followed starts of a Slurm job."""
        return [doc for doc in self.held.docs.values() if doc.slurm_job == number]

    def publish(self, doc: AttemptDoc) -> None:
        """Nothing, where only the time of the reading is another."""
        before = self.held.docs.get(doc.attempt)
        if before is not None and replace(before, seen_at=doc.seen_at) == doc:
            return
        body = doc.to_json()
        self._owners.learn((doc,))
        self.held.docs[doc.attempt] = doc
        self.documents[attempt_key(doc.attempt)] = body
        self.memory[f"{ATTEMPT}{doc.attempt}"] = body
        if before is None or any(getattr(before, name) != getattr(doc, name) for name in NEWS):
            self._news.append(job_news(doc, self._now))

    def node_news(self, detail: dict[str, object]) -> None:
        self._news.append(News(type=NewsType.NODE, at=self._now, detail=detail))

    def forget(self, doc: AttemptDoc) -> None:
        """Nothing more will be reported about it."""
        self.held.docs.pop(doc.attempt, None)
        self.memory[f"{ATTEMPT}{doc.attempt}"] = None

    def forget_capture(self, number: int) -> None:
        self.held.known.pop(number, None)
        self.memory[f"{KNOWN}{number}"] = None

    def reading(self) -> Reading:
        return Reading(
            documents=self.documents,
            news=tuple(self._news),
            memory=self.memory,
            problems=tuple(self.problems[:MAX_PROBLEMS]),
        )
