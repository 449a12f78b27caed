"""Caches what moto recomputes on every call although it never changes.

These take a third of the time of an emulated call: a class's method names by introspection, a service's URL patterns
(for S3 by re-reading a module from disk), the candidate names of a response field, and 52 random characters drawn one
at a time. No response changes; `tests/localcloud/test_moto_memory.py` compares them. Source: moto 5.2.5, the functions
named below.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import moto.core.responses
from moto.core.base_backend import BaseBackend
from moto.core.serialize import AttributePickerContext, XFormedAttributePicker
from moto.core.utils import method_names_from_class
from moto.moto_api._internal.moto_random import MotoRandom

Patch = Callable[[Any, str, Any], None]

_KEYS = "_rekindle_keys"  # on moto's shapes, which live as long as its models do


def remember(patch: Patch) -> None:
    """Lay the memory over moto. Begins empty, so what was patched before is remembered as it is then."""
    patch(moto.core.responses, "method_names_from_class", _names_memory())
    patch(BaseBackend, "urls", property(_urls_memory()))
    patch(XFormedAttributePicker, "get_possible_keys", _keys_memory())
    patch(MotoRandom, "get_random_string", _random_string)


def _names_memory() -> Callable[[type], frozenset[str]]:
    @cache
    def names(owner: type) -> frozenset[str]:
        return frozenset(method_names_from_class(owner))

    return names


def _urls_memory() -> Callable[[BaseBackend], dict[str, Any]]:
    work_out: Any = BaseBackend.__dict__["urls"].fget
    known: dict[type, dict[str, Any]] = {}

    def urls(backend: BaseBackend) -> dict[str, Any]:
        kind = type(backend)
        if kind not in known:
            known[kind] = work_out(backend)
        return known[kind]

    return urls


def _keys_memory() -> Callable[[XFormedAttributePicker, AttributePickerContext], Iterable[str]]:
    work_out: Any = XFormedAttributePicker.get_possible_keys

    def possible_keys(picker: XFormedAttributePicker, context: AttributePickerContext) -> Iterable[str]:
        """The names depend on the shape, what it is part of, the key, and the class of the object that is read."""
        shape, owner = context.shape, context.obj
        if shape is None or hasattr(owner, "Meta"):  # an object's own aliases
            return work_out(picker, context)  # type: ignore[no-any-return]
        known = shape.__dict__.setdefault(_KEYS, {})
        place = (context.key, owner.__class__.__name__, getattr(shape, "parent", None))
        if place not in known:
            known[place] = tuple(dict.fromkeys(work_out(picker, context)))
        return known[place]  # type: ignore[no-any-return]

    return possible_keys


def _random_string(random: MotoRandom, length: int = 20, include_digits: bool = True, lower_case: bool = False) -> str:
    pool = string.ascii_letters + (string.digits if include_digits else "")
    drawn = "".join(random.choices(pool, k=length))
    return drawn.lower() if lower_case else drawn
