"""axe-core in the page. `axe.min.js` is axe-core 4.14.1 as published (MPL-2.0), for these tests only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.console.browser import Browser

AXE: Final = (Path(__file__).parent / "axe.min.js").read_text()


def violations(browser: Browser) -> list[str]:
    """What axe-core finds, all of its rules for WCAG 2.2 A and AA and good practice."""
    browser.run("document.getElementById('live').click()")  # nothing is exchanged while axe looks
    browser.driver.execute_script(AXE)
    found = browser.driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run(document, {resultTypes: ['violations']}).then((r) => done(JSON.stringify(r.violations)));"
    )
    return [
        f"{one['id']}: {one['help']}: {[node['html'][:160] for node in one['nodes'][:4]]}" for one in json.loads(found)
    ]
