"""The running app, and the document that it serves of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.request import urlopen

import pytest
import schemathesis

from chalicelib.api.operation import PREFIX
from tests.api_fuzz.links import add_links
from tests.api_fuzz.stage import Stage, stage


@pytest.fixture(scope="module")
def staged() -> Iterator[Stage]:
    """One for each module: what an order of one has changed, no other meets."""
    with stage() as made:
        yield made


@pytest.fixture(scope="module")
def schema(staged: Stage) -> Any:
    with urlopen(f"{staged.url}{PREFIX}/openapi.json", timeout=120) as answer:  # noqa: S310  loopback
        document = json.load(answer)
    del document["security"]  # loopback is the border here: signatures are API Gateway's to check
    add_links(document)
    made = schemathesis.openapi.from_dict(document)
    made.config.update(base_url=staged.url + PREFIX)
    return made
