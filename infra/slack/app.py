"""The app's manifest with the addresses of one deployment: `rekindle stack slack-app` prints it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

MANIFEST: Final = Path(__file__).with_name("manifest.json")
_PLACE: Final = "https://API-ID.execute-api.REGION.amazonaws.com/api"


def manifest(api_url: str) -> dict[str, Any]:
    """The manifest for the API at `api_url`, stage included.

    Raises:
        ValueError: it is not an https address.
    """
    parts = urlsplit(api_url)
    if parts.scheme != "https" or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(
            f"{api_url!r} is not the address of an API: https://<id>.execute-api.<region>.amazonaws.com/api"
        )
    text = MANIFEST.read_text(encoding="utf-8").replace(_PLACE, api_url.rstrip("/"))
    found: dict[str, Any] = json.loads(text)
    return found
