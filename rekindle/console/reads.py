"""Reading the API for one page: all its questions at once, and each answer is there, not offered, or failed."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from rekindle.cli.client import Client
from rekindle.cli.errors import CliError, NotFound

MAX_AT_ONCE: Final = 8
# What API Gateway says to a path that it does not have.
# Source: its developer guide, gateway response MISSING_AUTHENTICATION_TOKEN
_NO_ROUTE: Final = "Missing Authentication Token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One answer. `body` is None where there is none; `why` then says so, and `is_absent` that it was never offered."""

    body: Mapping[str, Any] | None = None
    why: str = ""
    is_absent: bool = False

    def __bool__(self) -> bool:
        return self.body is not None

    def get(self, name: str, default: Any = None) -> Any:
        """A member of the answer."""
        return default if self.body is None else self.body.get(name, default)


@dataclass(frozen=True, slots=True)
class Question:
    """One route with its query."""

    route: str
    query: Mapping[str, str | int | None]


def ask(route: str, **query: str | int | None) -> Question:
    """A question."""
    return Question(route, query)


def read_one(client: Client, question: Question) -> Panel:
    """One answer; what is missing or fails is told, not raised, so that the rest of a page still stands."""
    try:
        return Panel(body=client.get(question.route, **question.query))
    except NotFound as err:
        return Panel(why=str(err), is_absent=True)
    except CliError as err:
        return Panel(why=str(err), is_absent=_NO_ROUTE in str(err))


def read_all(client: Client, pool: ThreadPoolExecutor, questions: Mapping[str, Question]) -> dict[str, Panel]:
    """All answers, by name."""
    asked = {name: pool.submit(read_one, client, question) for name, question in questions.items()}
    return {name: future.result() for name, future in asked.items()}
