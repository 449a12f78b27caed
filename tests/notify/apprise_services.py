"""`python -m tests.notify.apprise_services` writes chalicelib/channels/apprise_table.py from the installed Apprise."""

from __future__ import annotations

from pathlib import Path

TABLE = Path(__file__).resolve().parents[2] / "chalicelib" / "channels" / "apprise_table.py"
# Those that speak to the desktop or the log of this very machine, which is a Lambda function.
NOT_HERE = frozenset({"dbus", "glib", "gnome", "growl", "kde", "macosx", "qt", "syslog", "windows"})
_HEAD = '''"""Apprise's services: the scheme of an address -> the module and class that speak for it. Made, not written.

Apprise would import all of its plug-ins to find one, which takes seconds where nothing is compiled ahead (ADR 0004).
Source: the plug-ins of Apprise {version}; made by `python -m tests.notify.apprise_services`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

SERVICES: Final[Mapping[str, str]] = {{
'''


def services() -> dict[str, str]:
    """Scheme -> `module:class`, below apprise.plugins."""
    from apprise.manager_plugins import NotificationManager

    manager = NotificationManager()
    manager.load_modules()
    return {
        scheme: f"{manager[scheme].__module__.removeprefix('apprise.plugins.')}:{manager[scheme].__name__}"
        for scheme in sorted(manager.schemas())
        if scheme not in NOT_HERE
    }


def text() -> str:
    """The module's whole text."""
    from importlib.metadata import version

    rows = "".join(f'    "{scheme}": "{where}",\n' for scheme, where in services().items())
    return _HEAD.format(version=version("apprise")) + rows + "}\n"


if __name__ == "__main__":
    TABLE.write_text(text(), encoding="utf-8")
