"""docs/architecture.md shows every folder, and the index of the decisions has each once, with its title."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _folders() -> set[str]:
    """Tracked or new folders at the top, and below `chalicelib` and `rekindle`."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    parts = [path.split("/") for path in listed if (ROOT / path).is_file()]
    top = {part[0] for part in parts if len(part) > 1}
    return top | {f"{part[0]}/{part[1]}" for part in parts if len(part) > 2 and part[0] in ("chalicelib", "rekindle")}


def test_the_page_shows_every_folder_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## Folders\n")[2].partition("\n## ")[0]
    first_cells = re.findall(r"^\| (`[^|]+) \|", table, flags=re.MULTILINE)
    shown = {name for cell in first_cells for name in re.findall(r"`([\w./-]+)/`", cell)}
    assert shown == _folders()


def test_the_index_of_the_decisions_has_their_titles() -> None:
    folder = ROOT / "docs" / "adr"
    rows = re.findall(r"^\| \[(\d{4})\]\(([\w-]+\.md)\) \| (.+) \|$", (folder / "README.md").read_text("utf-8"), re.M)
    assert sorted(rows) == [
        (path.name[:4], path.name, path.read_text("utf-8").splitlines()[0].removeprefix(f"# {path.name[:4]} · "))
        for path in sorted(folder.glob("0*.md"))
    ]
