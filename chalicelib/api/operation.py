"""One operation of the REST API as a row: address, models, answers, handler. The table of them is in routes.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chalicelib.api.problems import ApiResponse
from chalicelib.api.request import Request
from chalicelib.api.schema import Schema, text

if TYPE_CHECKING:
    from chalicelib.api.parts import Parts

Link = Mapping[str, str]  # the target's parameter -> JSON pointer into the answer's body

PREFIX: Final = "/v1"  # the contract's version, in every path; a change that breaks callers gets another one
PATH_NAME: Final = re.compile(r"\{([a-z_]+)\}")
# Names in paths. Ids of ours and of the platforms are far shorter; a slash would be another path.
NAMES: Final[Mapping[str, Schema]] = {
    "job_id": text("the Job's id", pattern=r"^[^\x00-\x1f\x7f/]*$"),
    "incident_id": text("the Incident's id", high=64, pattern=r"^[a-z0-9-]+$"),
    "approval_id": text("the question's id", high=128, pattern=r"^[A-Za-z0-9._:-]+$"),
    "cluster": text("its name in its agent's settings", high=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$"),
    "node": text("the node's name in Slurm", high=64, pattern=r"^[A-Za-z0-9._-]+$"),
    "name": text("the policy's name", high=64, pattern=r"^[A-Za-z0-9._-]+$"),
    "drill_id": text("the drill's id", high=64, pattern=r"^[a-z0-9-]+$"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation. `name` is its operationId; `path` is below PREFIX.

    Every caller needs IAM's execute-api:Invoke on the method and path.

    `run`: the handler. `summary` and `details`: one line, and what else a caller must know.
    `query`: the schemas of its query parameters, by name. `names`: those of its path (NAMES).
    `forms`: the schemas of its body, by the member that distinguishes them; the first applies where none is present.
    `answers`: the schemas of its successful answers, by status. `refuses`: statuses of problems besides those that
    follow from the rest of the row (`problems`).
    `links`: where its successful answer leads (OpenAPI links), by operation. A pointer to nothing leads nowhere.
    `is_order`: it changes something, and takes an Idempotency-Key.
    `is_versioned`: its document is replaced by version (versions.py), and its answer has an ETag.
    """

    name: str
    method: str
    path: str
    tag: str
    summary: str
    run: Callable[[Parts, Request], ApiResponse]
    answers: Mapping[int, Schema]
    details: str = ""
    query: Mapping[str, Schema] = field(default_factory=dict)
    forms: Mapping[str, Schema] = field(default_factory=dict)
    links: Mapping[str, Link] = field(default_factory=dict)
    is_order: bool = False
    is_versioned: bool = False
    refuses: tuple[int, ...] = ()
    example: Mapping[str, Any] | None = None

    @property
    def address(self) -> str:
        """The whole path."""
        return PREFIX + self.path

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
