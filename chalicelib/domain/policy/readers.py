"""Reading one field of a settings document that people write: the value, or InvalidSettings with the dotted path."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

from chalicelib.domain.model.errors import InvalidSettings

MAX_TEXT_CHARS: Final = 2048
NAME: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
)  # of a channel, source or secret: part of a parameter's name
ENDS_SECRET: Final = "_secret"  # noqa: S105  the end of the names of fields that hold the name of a secret

_Word = TypeVar("_Word", bound=StrEnum)


def an_object(value: object, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidSettings(at, f"must be an object, not {type(value).__name__}")
    return value


def a_list(value: object, at: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidSettings(at, f"must be a list, not {type(value).__name__}")
    return value


def only(body: Mapping[str, Any], at: str, known: Sequence[str]) -> None:
    """No other fields than the known ones: a misspelt one is reported, never ignored."""
    for name in body:
        if name not in known:
            raise InvalidSettings(f"{at}.{name}"[:200].lstrip("."), f"is not known; known are {', '.join(known)}")


def a_name(value: str, at: str) -> str:
    if not NAME.fullmatch(value):
        raise InvalidSettings(at, f"must have the form {NAME.pattern}")
    return value


def a_text(value: object, at: str) -> str:
    """A short printable text, never empty."""
    if value is None:
        raise InvalidSettings(at, "missing")
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT_CHARS or not value.isprintable():
        raise InvalidSettings(at, f"must be a text of 1 to {MAX_TEXT_CHARS} printable characters")
    return value


def texts(value: object, at: str) -> tuple[str, ...]:
    """A list of short texts."""
    return tuple(a_text(item, f"{at}.{number}") for number, item in enumerate(a_list(value, at)))


def a_flag(value: object, at: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise InvalidSettings(at, "must be true or false")
    return value


def a_word(value: object, at: str, known: type[_Word]) -> _Word:
    """One of a closed list."""
    text = a_text(value, at)
    try:
        return known(text)
    except ValueError as err:
        raise InvalidSettings(at, f"must be one of {', '.join(known)}") from err


def words(value: object, at: str, known: type[_Word]) -> tuple[_Word, ...]:
    """A list of words of a closed list."""
    return tuple(a_word(item, f"{at}.{number}", known) for number, item in enumerate(a_list(value, at)))
