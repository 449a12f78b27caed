"""Links to a run's own pages in an experiment tracker: W&B, MLflow, TensorBoard, or any other. Pure.

    REKINDLE_LINKS="W&B=https://wandb.ai/acme/llm/runs/1ab2 MLflow=https://mlflow.acme.example/#/experiments/3/runs/9f"

The run writes them into its heartbeat; people open them from its Incidents. Only https, without a user's name or
password, in characters that no page and no chat reads as markup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

ENV_LINKS: Final = "REKINDLE_LINKS"
MAX_LINKS: Final = 4
_NAME_SIGNS: Final = r"[A-Za-z0-9][A-Za-z0-9&._-]{0,23}"
_NAME: Final = re.compile(rf"{_NAME_SIGNS}\Z")
_LABEL: Final = re.compile(rf"Run in (?P<name>{_NAME_SIGNS}) \(")
_URL: Final = re.compile(
    r"https://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(?::[0-9]{1,5})?(?:[/?#][A-Za-z0-9._~:/?#!$&+,;=%@-]{0,400})?\Z"
)
_CONSOLE: Final = re.compile(
    r"https://[a-z0-9-]{1,32}\.console\.(?:aws\.amazon\.com|amazonaws\.cn|amazonaws-us-gov\.com)/"
    r"[A-Za-z0-9/?#:=$%._~+-]{1,900}\Z"
)
_CONSOLE_LABEL: Final = re.compile(r"[A-Za-z ]{1,60}\Z")

Links = tuple[tuple[str, str], ...]  # name and address


def read_links(text: str) -> Links:
    """The links of the setting: NAME=URL, separated by spaces.

    Raises:
        ValueError: says which one is wrong, and how.
    """
    found: dict[str, str] = {}
    for part in text.split():
        name, is_pair, url = part.partition("=")
        if not is_pair or not _NAME.match(name):
            raise ValueError(f"{part[:60]!r} is not NAME=URL with a name of letters and digits")
        if name in found:
            raise ValueError(f"{name!r} is there twice")
        if not _URL.match(url):
            raise ValueError(f"{name}: {url[:60]!r} is no https address")
        found[name] = url
    if len(found) > MAX_LINKS:
        raise ValueError(f"there are {len(found)} links, at most {MAX_LINKS} are shown")
    return tuple(found.items())


def label_of(name: str, url: str) -> str:
    """What is shown for a link: with the host, because a program that may write a heartbeat may choose any name."""
    return f"Run in {name} ({urlsplit(url).hostname})"


def is_address(label: str, line: str) -> bool:
    """The line of an Incident is an address to open: of AWS's own console, or of a run, whose label names its host. All
    others are commands.
    """
    if _CONSOLE.match(line):
        return _CONSOLE_LABEL.match(label) is not None
    shown = _LABEL.match(label)
    return shown is not None and _URL.match(line) is not None and label == label_of(shown["name"], line)


def links_of(wire: Mapping[str, object]) -> Links:
    """The links of a heartbeat, name to address. What is none is left out: a heartbeat tells more than its links."""
    pairs = [(name, url) for name, url in wire.items() if isinstance(name, str) and isinstance(url, str)]
    return tuple((name, url) for name, url in pairs if _NAME.match(name) and _URL.match(url))[:MAX_LINKS]
