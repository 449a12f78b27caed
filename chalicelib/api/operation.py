"""One operation of the REST API as a row: address, models, answers, handler. The table of them is in routes.py."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from chalicelib.api.fields import NAMES, Parameter, body_schema
from chalicelib.api.problems import ApiResponse
from chalicelib.api.request import Request
from chalicelib.api.schema import Schema

if TYPE_CHECKING:
    from chalicelib.api.parts import Parts

PREFIX: Final = "/v1"  # the contract's version, in every path; a change that breaks callers gets another one
PATH_NAME: Final = re.compile(r"\{([a-z_]+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One operation. `path` is below PREFIX.

    Every caller needs IAM's execute-api:Invoke on the method and path.

    `run`: the handler; its name is the operationId, and its docstring the summary. `details`: what else a caller must
    know.
    `query`: its query parameters, by name. `names`: the types of those in its path (NAMES).
    `forms`: the types of its body, by the member that distinguishes them; the first applies where none is present.
    `answers`: the schemas of its successful answers, by status. `refuses`: statuses of problems besides those that
    follow from the rest of the row (`problems`).
    `is_order`: it changes something, and takes an Idempotency-Key.
    `is_versioned`: its document is replaced by version (versions.py), and its answer has an ETag.
    """

    method: str
    path: str
    tag: str
    run: Callable[[Parts, Request], ApiResponse]
    answers: Mapping[int, Schema]
    details: str = ""
    query: Mapping[str, Parameter] = field(default_factory=dict)
    forms: Mapping[str, type[Any]] = field(default_factory=dict)
    is_order: bool = False
    is_versioned: bool = False
    refuses: tuple[int, ...] = ()
    example: Mapping[str, Any] | None = None

    @property
    def name(self) -> str:
        return self.run.__name__

    @property
    def summary(self) -> str:
        return (self.run.__doc__ or "").removesuffix(".")

    @property
    def address(self) -> str:
        """The whole path."""
        return PREFIX + self.path

    @property
    def names(self) -> dict[str, Any]:
        """The types of the names in the path."""
        return {name: NAMES[name] for name in PATH_NAME.findall(self.path)}

    @property
    def body(self) -> Schema | None:
        """What the body can be; None where there is none."""
        forms = [body_schema(kind) for kind in self.forms.values()]
        return None if not forms else forms[0] if len(forms) == 1 else {"oneOf": forms}

    def body_form(self, body: Any) -> type[Any]:
        """The type that this body means to be of."""
        for member, kind in self.forms.items():
            if isinstance(body, Mapping) and member in body:
                return kind
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
