"""A shell whose script is followed and not run: what is known of its variables, and of words with them. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from rekindle.sbatch.shell import closing
from rekindle.sbatch.tree import Node

UNKNOWN: Final = "\ue001"  # in place of what only a run can tell
_MAX_WORDS: Final = 200  # of one expansion
_MAX_VALUE: Final = 4096
_BRACED: Final = re.compile(r"\$\{([A-Za-z_]\w*|[?!@*#]|\d)(\[[@*]\]|\[\d+\])?\}")
_NAMED: Final = re.compile(r"\$([A-Za-z_]\w*|[?!@*#]|\d)")
_SUM: Final = re.compile(r"\s*\$?(\w+)\s*([+-])\s*(\d{1,6})\s*")
_COMPARED: Final = re.compile(r"\s*\$?(\w+)\s*(?:(==|!=|<=|>=|<|>)\s*\$?(\w+)\s*)?")
_TESTS: Final[dict[str, Callable[[int, int], bool]]] = {
    **dict.fromkeys(("-eq", "=", "=="), lambda one, other: one == other),
    **dict.fromkeys(("-ne", "!="), lambda one, other: one != other),
    **dict.fromkeys(("-gt", ">"), lambda one, other: one > other),
    **dict.fromkeys(("-ge", ">="), lambda one, other: one >= other),
    **dict.fromkeys(("-lt", "<"), lambda one, other: one < other),
    **dict.fromkeys(("-le", "<="), lambda one, other: one <= other),
}


@dataclass(slots=True)
class State:
    """The state of one shell; a subshell has a copy."""

    values: dict[str, list[str]] = field(default_factory=dict)
    functions: dict[str, Node] = field(default_factory=dict)
    traps: dict[str, str] = field(default_factory=dict)
    options: set[str] = field(default_factory=set)
    jobs: list[tuple[str, int]] = field(default_factory=list)  # in the background, with what each ends with
    arguments: list[str] = field(default_factory=list)
    status: int = 0
    pipe: list[int] = field(default_factory=list)

    def copy(self) -> State:
        return State(
            dict(self.values),
            dict(self.functions),
            {},
            set(self.options),
            [],
            list(self.arguments),
            self.status,
        )

    def set(self, name: str, values: list[str], *, is_added: bool, is_array: bool) -> None:
        """`NAME=`, `NAME+=` and their arrays."""
        before = self.values.get(name, []) if is_added else []
        if is_added and not is_array:
            before, values = [], ["".join((*before[:1], *values))]
        self.values[name] = [value[:_MAX_VALUE] for value in (*before, *values)][:_MAX_WORDS]

    def set_options(self, words: list[str]) -> None:
        """`set -e`, `set +o pipefail` and the like."""
        for place, word in enumerate(words):
            change = self.options.add if word[:1] == "-" else self.options.discard
            for letter in word[1:] if word[:1] in ("-", "+") else "":
                named = words[place + 1] if letter == "o" and place + 1 < len(words) else letter
                change("errexit" if letter == "e" else named)

    def trap(self, words: list[str]) -> None:
        """`trap ACTION SIGNAL…`."""
        for signal in words[1:]:
            self.traps["EXIT" if signal == "0" else signal.upper()] = words[0] if words[0] != "-" else ""

    def words(self, words: Iterable[str], *, cuts: bool = True) -> list[str]:
        """Each word as bash would pass it; what is not known is a mark of its own."""
        found: list[str] = []
        for word in words:
            every = re.fullmatch(r"\"?\$(?:@|\*|\{@\}|\{(\w+)\[[@*]\]\})\"?", word)
            if every is not None:
                found += self.values.get(every[1], [UNKNOWN]) if every[1] else self.arguments
                continue
            text, is_bare = _expanded(word, self._value)
            found += text.split() if is_bare and cuts else [text]
        return found[:_MAX_WORDS]

    def _value(self, name: str, index: int) -> str:
        if name == "?":
            return str(self.status)
        if name == "PIPESTATUS":
            return str(self.pipe[index]) if index < len(self.pipe) else str(self.status)
        if name == "jobs -p":
            return " ".join(job for job, _ in self.jobs)
        if name.startswith("("):
            added = _SUM.fullmatch(name[1:-1])
            number = self.number(added[1]) if added else None
            if added is None or number is None:
                return UNKNOWN
            return str(number + int(added[3]) if added[2] == "+" else number - int(added[3]))
        if name.isdigit() and name != "0":
            return self.arguments[int(name) - 1] if int(name) <= len(self.arguments) else ""
        values = self.values.get(name, [UNKNOWN])
        return values[index] if index < len(values) else ""

    def number(self, word: str) -> int | None:
        value = word if word.isdigit() else self.values.get(word, [UNKNOWN])[0:1][0]
        return int(value) if value.isdigit() and len(value) < 9 else None

    def test(self, words: list[str]) -> bool | None:
        """`[ … ]`: None where what it tests is not known."""
        words = words[:-1] if words[-1:] == ["]"] else words
        if words[:1] == ["!"]:
            found = self.test(words[1:])
            return None if found is None else not found
        if any(UNKNOWN in word for word in words):
            return None
        if len(words) == 3 and words[1] in _TESTS:
            one, compared, other = words
            if one.isdigit() and other.isdigit():
                return _TESTS[compared](int(one), int(other))
            if compared in ("=", "==", "!="):
                return (one == other) == (compared != "!=")
        if words[:1] in (["-z"], ["-n"]) and len(words) == 2:
            return (words[1] == "") == (words[0] == "-z")
        return None

    def compare(self, text: str) -> bool | None:
        """`(( … ))`: None where what it compares is not known."""
        counted = re.fullmatch(r"\s*(\w+)\s*(?:\+\+|\+=\s*1|=\s*\1\s*\+\s*1)\s*", text)
        if counted is not None:
            value = self.number(counted[1])
            self.values[counted[1]] = [UNKNOWN if value is None else str(value + 1)]
            return True
        compared = _COMPARED.fullmatch(text)
        one = self.number(compared[1]) if compared else None
        other = self.number(compared[3]) if compared and compared[3] else 0
        if compared is None or one is None or other is None:
            return None
        return _TESTS[compared[2] or "!="](one, other)


def array_words(raw: str) -> list[str]:
    """The words between an array's brackets, as they are written."""
    return [word for word in re.findall(r"\"[^\"]*\"|'[^']*'|[^\s'\"]+", raw[1:-1])]


def _expanded(word: str, value: Callable[[str, int], str]) -> tuple[str, bool]:
    """A word without its quotes and with its variables; and whether a variable stood outside quotes."""
    found: list[str] = []
    at, is_quoted, is_bare = 0, False, False
    while at < len(word) and len(found) < _MAX_VALUE:
        char = word[at]
        if char == "'" and not is_quoted:
            end = word.find("'", at + 1)
            end = len(word) if end < 0 else end
            found.append(word[at + 1 : end])
            at = end + 1
        elif char == '"':
            is_quoted = not is_quoted
            at += 1
        elif char == "\\":
            found.append(word[at + 1 : at + 2])
            at += 2
        elif char == "$":
            is_bare |= not is_quoted
            match = _BRACED.match(word, at) or _NAMED.match(word, at)
            if match is not None:
                index = (match[2] or "").strip("[]") if match.re is _BRACED else ""
                found.append(value(match[1], int(index) if index.isdigit() else 0)[:_MAX_VALUE])
                at = match.end()
            else:
                end = closing(word, at + 1) if word[at + 1 : at + 2] in ("(", "{") else at + 1
                inside = word[at + 2 : end - 1].strip()
                is_known = word.startswith("$((", at) or inside == "jobs -p"
                found.append(value(inside, 0) if is_known else UNKNOWN)
                at = end
        elif char == "`":
            end = word.find("`", at + 1)
            found.append(UNKNOWN)
            at = len(word) if end < 0 else end + 1
        else:
            found.append(char)
            at += 1
    return "".join(found), is_bare
