"""What one route is: its address, what it takes, what it answers, and what runs. The table of them is in routes.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chalicelib.api.problems import Answer
from chalicelib.api.request import DEFAULT_LIMIT, MAX_LIMIT, Request
from chalicelib.api.schema import Schema, text, whole

if TYPE_CHECKING:
    from chalicelib.api.parts import Parts

PATH_NAME: Final = re.compile(r"\{([a-z_]+)\}")
LIMIT: Final = {**whole("rows of one page", low=1, high=MAX_LIMIT), "default": DEFAULT_LIMIT}
CURSOR: Final = text("`cursor` of the page before; only this API makes any", high=1024, pattern=r"^[A-Za-z0-9_=-]+$")
PAGED: Final[Mapping[str, Schema]] = {"limit": LIMIT, "cursor": CURSOR}
EMPTY: Final[Schema] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
    "description": "nothing; the body may be left out",
}

# Names in paths. Ids of ours and of the platforms are far shorter; a slash would be another path.
NAMES: Final[Mapping[str, Schema]] = {
    "job_id": text("the Job's id", pattern=r"^[^\x00-\x1f\x7f/]*$"),
    "incident_id": text("the Incident's id", high=64, pattern=r"^[a-z0-9-]+$"),
    "approval_id": text("the question's id", high=128, pattern=r"^[A-Za-z0-9._:-]+$"),
    "cluster": text("its name, as its agent was told", high=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$"),
    "node": text("the node's name in Slurm", high=64, pattern=r"^[A-Za-z0-9._-]+$"),
    "name": text("the policy's name", high=64, pattern=r"^[A-Za-z0-9._-]+$"),
    "drill_id": text("the drill's id", high=64, pattern=r"^[a-z0-9-]+$"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route. `name` is its function in app.py and its operationId.

    `answers` are the good answers by status, `refuses` the problems besides those that every operation may have.
    `forms` are what the body can be, by the member that tells them apart; the first is meant where none is there.
    `is_order`: it changes something, and takes an Idempotency-Key.
    """

    name: str
    method: str
    path: str
    tag: str
    summary: str
    run: Callable[[Parts, Request], Answer]
    answers: Mapping[int, Schema]
    said: str = ""
    query: Mapping[str, Schema] = field(default_factory=dict)
    forms: Mapping[str, Schema] = field(default_factory=dict)
    is_order: bool = False
    refuses: tuple[int, ...] = ()
    example: Mapping[str, Any] | None = None

    @property
    def names(self) -> dict[str, Schema]:
        """The names in the path."""
        return {name: NAMES[name] for name in PATH_NAME.findall(self.path)}

    @property
    def body(self) -> Schema | None:
        """What the body can be; None where there is none."""
        forms = list(self.forms.values())
        return None if not forms else forms[0] if len(forms) == 1 else {"oneOf": forms}

    def body_form(self, body: Any) -> Schema:
        """The schema that this body means to fit."""
        for member, schema in self.forms.items():
            if isinstance(body, Mapping) and member in body:
                return schema
        return next(iter(self.forms.values()))

    @property
    def problems(self) -> tuple[int, ...]:
        """Every status with which it may refuse."""
        found = {403, 415, 422, 429, 500, 503, *self.refuses}
        if self.query or self.is_order or self.forms:
            found.add(400)
        if self.names:
            found.add(404)
        if self.forms:
            found.add(413)
        if self.is_order:
            found.add(409)
        return tuple(sorted(found))
