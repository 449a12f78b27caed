"""Policy documents for people: listed, read, tried, compared and stored. What is stored can be read by the service."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from chalicelib.domain.model.errors import InvalidPolicy, UnknownEntity
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy, flat
from chalicelib.ports.clock import Clock
from chalicelib.ports.operator import PolicyDocumentStore, StoredPolicy

DEFAULT_NAME: Final = "default"
MAX_PROBLEMS: Final = 50
_NOT_COMPARED: Final = frozenset({"schema", "name", "version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyDocuments:
    """A new version counts for Incidents that open from then on (within 30 s); an open one keeps its own."""

    documents: PolicyDocumentStore
    clock: Clock

    def listing(self) -> list[dict[str, Any]]:
        """Every policy in brief; `default` always exists."""
        stored = [_brief(policy) for policy in self.documents.listing()]
        if not any(brief["name"] == DEFAULT_NAME for brief in stored):
            stored.insert(0, _brief(None))
        return stored

    def get(self, name: str) -> dict[str, Any]:
        """One policy: the document as it is stored, and `effective`, every field with what counts.

        Raises:
            UnknownEntity: nothing is stored under that name.
        """
        stored = self._stored(name)
        document, problem = _document(stored)
        effective: dict[str, Any] | None = None
        if problem is None:
            try:
                effective = _policy(name, document).to_wire()
            except InvalidPolicy as err:
                problem = str(err)
        return {**_brief(stored), "document": document, "effective": effective, "problem": problem}

    def put(self, name: str, document: Mapping[str, Any], *, replaces: int) -> dict[str, Any]:
        """Store `document` in place of version `replaces`, 0 where there is none yet.

        Raises:
            InvalidPolicy: names the first field that is wrong, or the document is too large.
            Outdated: another version is there.
            VersionConflict: another writer is writing it now.
        """
        _policy(name, document)
        try:
            text = stored_text(document)
        except TooLong as err:
            raise InvalidPolicy("policy", str(err)) from err
        present = self.documents.stored(name)
        if present is not None and present.version == replaces + 1 and present.text == text:
            return self.get(name)  # this very order was carried out before, and its answer was lost
        self.documents.write(name, text, replaces=replaces, now=self.clock.now())
        return self.get(name)

    def validate(self, document: Mapping[str, Any], *, name: str) -> dict[str, Any]:
        """Whether the service could read `document`: every problem with its field, and what would count."""
        problems = list(_problems(name, document))
        effective = None if problems else _policy(name, document).to_wire()
        return {"valid": not problems, "problems": problems, "effective": effective}

    def diff(self, name: str, document: Mapping[str, Any]) -> dict[str, Any]:
        """What would change, field by field, if `document` were stored as `name`.

        Raises:
            InvalidPolicy: names the first field that is wrong.
        """
        after = _policy(name, document)
        try:
            stored = self._stored(name)
        except UnknownEntity:
            stored = None
        now, problem = DEFAULT_POLICY, None
        if stored is not None:
            try:
                now = _policy(name, json.loads(stored.text))
            except (ValueError, InvalidPolicy) as err:
                problem = str(err)
        changes = [] if problem else list(_changes(now.to_wire(), after.to_wire()))
        return {
            "name": name,
            "version": stored.version if stored is not None else 0,
            "changes": changes,
            "problem": problem,
        }

    def _stored(self, name: str) -> StoredPolicy | None:
        """None for `default` where only the built-in one exists."""
        stored = self.documents.stored(name)
        if stored is None and name != DEFAULT_NAME:
            raise UnknownEntity(f"policy {name!r} is not stored")
        return stored


def _brief(stored: StoredPolicy | None) -> dict[str, Any]:
    return {
        "name": stored.name if stored else DEFAULT_NAME,
        "version": stored.version if stored else 0,
        "is_builtin": stored is None,
        "modified_at": stored.modified_at.isoformat() if stored and stored.modified_at else None,
    }


def _document(stored: StoredPolicy | None) -> tuple[dict[str, Any], str | None]:
    """A document that was stored by hand is shown with what is wrong with it, not refused."""
    if stored is None:
        return {}, None
    try:
        document = json.loads(stored.text)
    except (ValueError, RecursionError):
        return {}, "is not a JSON document"
    return (document, None) if isinstance(document, dict) else ({}, "is not a JSON object")


def _policy(name: str, document: Mapping[str, Any]) -> Policy:
    """As the service reads it from the store (aws/ssm/policies.py).

    Raises:
        InvalidPolicy: names the field.
    """
    policy = Policy.from_wire({"name": name, **document})
    if policy.name != name:
        raise InvalidPolicy("name", f"is {policy.name!r}, but the document is stored as {name!r}")
    return policy


def _problems(name: str, document: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The reader stops at the first problem: what it names is taken out, and the rest is read again."""
    left = copy.deepcopy(dict(document))
    for _ in range(MAX_PROBLEMS):
        try:
            _policy(name, left)
        except InvalidPolicy as err:
            yield {"field": err.field[:256], "problem": err.problem[:1000]}
            if not _take_out(left, err.field):
                return
        else:
            return


def _take_out(document: dict[str, Any], field: str) -> bool:
    """Drop the innermost member of the document in which `field` lies; False where it lies in none."""
    for member in sorted(document, key=len, reverse=True):
        if field == member or field.startswith(f"{member}["):
            del document[member]
            return True
        if field.startswith(f"{member}."):
            inner = document[member]
            if not (isinstance(inner, dict) and _take_out(inner, field.removeprefix(f"{member}."))):
                del document[member]  # the field is missing there, or not as it is written
            return True
    return False


def _changes(now: Mapping[str, Any], then: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    before, after = flat(now), flat(then)
    for field in sorted(before.keys() | after.keys()):
        if field not in _NOT_COMPARED and before.get(field) != after.get(field):
            yield {"field": field, "now": before.get(field), "then": after.get(field)}


MAX_BYTES: Final = 8192  # Source: Parameter Store, size of an advanced parameter


class TooLong(ValueError):
    """The document does not fit; the text says by how much."""


def stored_text(document: Mapping[str, Any]) -> str:
    """JSON of ASCII, of the same meaning, without two opening braces beside each other.

    Those begin a reference to another parameter, which no value may hold. Source: Parameter Store, PutParameter, Value.
    They stand inside of JSON's texts only, where an escape means the same.

    Raises:
        TooLong: more than MAX_BYTES.
    """
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=True).replace("{{", "{\\u007b")
    if len(text) > MAX_BYTES:
        raise TooLong(f"is {len(text)} bytes as it is stored, {MAX_BYTES} at most")
    return text
