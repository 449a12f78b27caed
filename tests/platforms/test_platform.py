"""Platform as a value: what a decision is recorded with, and that each capability is asked for by someone."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from chalicelib.domain.model.errors import Permanent
from chalicelib.domain.model.platform import UNKNOWN_PLATFORM, Platform
from chalicelib.platforms.registry import PLATFORMS
from chalicelib.platforms.schedulers import Schedulers
from tests.platforms.toy.platform import TOY

SERVICE = Path(__file__).parents[2] / "chalicelib"


@pytest.mark.parametrize("platform", [*PLATFORMS, TOY, UNKNOWN_PLATFORM], ids=lambda one: one.name)
def test_it_comes_back_from_its_wire_form(platform: Platform) -> None:
    assert Platform.from_wire(platform.to_wire()) == platform


def test_a_capability_of_a_newer_version_is_left_out() -> None:
    beyond: list[str] = []
    assert Platform.from_wire(TOY.to_wire() | {"flies": True}, beyond=beyond) == TOY
    assert beyond == ["flies"]


def test_names_are_unique_and_are_fit_to_be_stored() -> None:
    names = [platform.name for platform in PLATFORMS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]{0,30}", name) for name in names)


def test_of_a_platform_that_is_not_known_nothing_is_assumed() -> None:
    assert not any(getattr(UNKNOWN_PLATFORM, field.name) is True for field in fields(Platform))


def test_every_capability_is_asked_for_outside_the_platforms_folders() -> None:
    asking = "\n".join(
        path.read_text()
        for path in SERVICE.rglob("*.py")
        if "platforms" not in path.parts and path.name != "platform.py"
    )
    unasked = [field.name for field in fields(Platform) if not re.search(rf"\.{field.name}\b", asking)]
    assert unasked == []


def test_a_job_of_a_platform_that_is_not_here_is_refused_by_name() -> None:
    with pytest.raises(Permanent, match="no platform 'gone'"):
        Schedulers().of("gone")
