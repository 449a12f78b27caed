"""What the JSON form of a type is, and how a complaint names the field. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rekindle.protocol.wire import MailboxError

Schema = dict[str, Any]

_SHOWN_CHARS: Final = 40  # of a refused value, in the complaint about it
_NAME_CHARS: Final = 80  # of a member's name there: names of a stranger's object may be long


@dataclass(frozen=True)
class Form:
    """How values of one type are written, read and described.

    `write` takes the value, and whether defaults are written. `read` takes the JSON, and the list to which it adds the
    names of unknown fields; it raises MailboxError. `schema` takes whether it is of what is written. `is_scalar`: the
    JSON is no object and no list; `is_plain`: it is the value as it is; `takes_null`: null is a value.
    """

    write: Callable[[Any, bool], Any]
    read: Callable[[Any, list[str]], Any]
    schema: Callable[[bool], Schema]
    is_scalar: bool = False
    is_plain: bool = False
    takes_null: bool = False


def within(form: Form, name: str | int, value: Any, unknown: list[str]) -> Any:
    """Read a member; its name goes before those of the fields that are wrong or not known in it."""
    before = len(unknown)
    try:
        made = form.read(value, unknown)
    except MailboxError as err:
        raise err.within(str(name)[:_NAME_CHARS]) from None
    if len(unknown) > before:
        unknown[before:] = [f"{name}.{field}" for field in unknown[before:]]
    return made


def must_be(wanted: str, value: object) -> MailboxError:
    """The complaint about a value of another type."""
    return MailboxError("", f"must be {wanted}, not {type(value).__name__}")


def shown(value: object) -> str:
    """A refused value in a complaint, cut."""
    return repr(str(value)[:_SHOWN_CHARS])
