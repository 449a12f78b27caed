"""Text from outside, made harmless inside a Markdown document. Pure.

A job's name, a log line or a comment may hold anything. What comes out of here is shown as it is by CommonMark and
GitHub's dialect, and nothing of it is markup, HTML, a link, a mention or a line of its own.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

# CommonMark: any ASCII punctuation may be escaped by a backslash, and is then only itself.
_MARKUP: Final = re.compile(r"([\\`*_\[\]#|~$@]|:(?=//)|(?<=mailto):|(?<=xmpp):)", re.IGNORECASE)
_AT_START: Final = re.compile(r"^(?:([-+>.])|(\d{1,9})([.)]))")
_WWW: Final = re.compile(r"(?i)\b(www)\.")
# GitHub links an e-mail address and a mention after it has read the escapes, so these are parted by a word joiner.
_JOINER: Final = "\u2060"


def plain(text: object, limit: int = 400) -> str:
    """`text` on one line, for the middle of a line or a table's cell."""
    line = one_line(str(text), limit)
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = _MARKUP.sub(r"\\\1", line)
    line = line.replace("\\@", f"\\@{_JOINER}")
    line = _WWW.sub(rf"\1{_JOINER}.", line)
    return _AT_START.sub(_escaped_start, line)


def _escaped_start(match: re.Match[str]) -> str:
    mark, number, end = match.groups()
    return f"\\{mark}" if mark else f"{number}\\{end}"


def one_line(text: str, limit: int) -> str:
    """Without control and format characters (line ends, terminals' escapes, right-to-left overrides), cut to size."""
    kept = "".join(" " if unicodedata.category(char) in _UNSEEN else char for char in text[: limit * 4])
    line = " ".join(kept.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


# Cc: controls; Cf: format (bidirectional overrides, joiners); Zl, Zp: line ends; Cs, Co, Cn: nothing that can be shown.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp", "Cs", "Co", "Cn"})
