"""A batch script's commands and variables, as far as they can be known without running it. Pure.

Read: quotes, comments, line continuations, here-documents (left out), command substitutions (their commands are
marked), arrays, assignments, `${NAME:-default}`. Not run: conditions, loops, functions, arithmetic, `source`. A
variable that is set in several places has all its values at once, so `AUTO_RESUME=""` and, on HyperPod,
`AUTO_RESUME="--auto-resume=1"` give both. What is in single quotes, or escaped, is not expanded here, because another
shell does that, on another node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

LATER: Final = "\ue000"  # stands for a `$` that this shell does not expand (single quotes, backslash)
MAX_DEPTH: Final = 8  # of substitutions within substitutions, and of variables within variables
MAX_EXPANDED: Final = 32_000  # characters of one expanded command
_PLAIN: Final = re.compile(r"[^\s'\"\\$`;&|<>()#]+")
_ASSIGNED: Final = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?:\[[^\]]*\])?\+?=(?P<value>.*)", re.DOTALL)
_VARIABLE: Final = re.compile(
    r"\$(?:(?P<plain>[A-Za-z_][A-Za-z0-9_]*)|\{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)(?P<rest>[^{}]*)\})"
)
_DEFAULT: Final = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*):?[-=](?P<value>[^{}]*(?:\$\{[^{}]*\}[^{}]*)*)\}")
# Words that may stand before a command and are not it.
_BEFORE: Final = frozenset(("if", "then", "elif", "else", "do", "while", "until", "!", "{", "time"))
# What closes the group that such a word opens. A list goes into the background whole, with its `&&`, `||` and pipes.
_CLOSES: Final = {"{": "}", "if": "fi", "case": "esac"} | dict.fromkeys(("for", "while", "until", "select"), "done")
_MAX_GROUPS: Final = 32  # within each other
_GOES_ON: Final = ("&&", "||", "|")
_SETTING: Final = frozenset(("export", "declare", "typeset", "local", "readonly"))
# Words that start the command behind them, and what of theirs stands between.
_WRAPPERS: Final = frozenset(
    ("command", "builtin", "nohup", "time", "timeout", "env", "nice", "stdbuf", "sudo", "numactl", "xargs", "parallel")
)
# Those whose second word is `run`, and their options that take a word of their own.
_RUNNERS: Final = frozenset(("conda", "mamba", "micromamba", "uv", "poetry", "pipenv", "pixi"))
_WITH_A_WORD: Final = frozenset(
    ("-n", "--name", "-p", "--prefix", "--cwd", "-e", "--environment", "--with", "--python")
)
_OF_A_WRAPPER: Final = re.compile(r"-.*|\d+(?:\.\d+)?[smhd]?|[A-Za-z_]\w*=.*")


@dataclass(frozen=True, slots=True)
class Command:
    """One simple command. `end` is what ends it: a line's end (empty), `;`, `&`, `&&`, `||`, `|`, `(` or `)`.

    `is_background`: a `&` ends the list or the group that it is part of.
    """

    line: int
    words: tuple[str, ...]
    end: str
    is_inner: bool  # inside a command substitution
    is_background: bool = False

    @property
    def program(self) -> str:
        """The command's name without its folder."""
        return self.words[0].rpartition("/")[2] if self.words else ""


@dataclass(slots=True)
class Shell:
    """All that was read."""

    commands: list[Command] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)  # where a variable is set first

    def set(self, name: str, value: str, line: int) -> None:
        """One more value of a variable."""
        known = self.values.setdefault(name, [])
        if value not in known and len(known) < 32:
            known.append(value)
        self.lines.setdefault(name, line)

    def expanded(self, words: Iterable[str]) -> list[str]:
        """The words with variables replaced by every value they may have, cut at blanks; unknown ones stay."""
        text = "\n".join(words)[:MAX_EXPANDED]
        for _ in range(MAX_DEPTH):
            left = MAX_EXPANDED

            def value(found: re.Match[str]) -> str:
                nonlocal left
                name, rest = found["plain"] or found["braced"], found["rest"] or ""
                known = " ".join(self.values.get(name, ()))
                if rest.startswith("#") or name not in self.values or len(known) > left:
                    return found[0]
                left -= len(known)
                return known

            more = _VARIABLE.sub(value, text)
            if more == text or len(more) > MAX_EXPANDED:
                break
            text = more
        return text.split()


def read_shell(text: str) -> Shell:
    """Everything in a script. Raises nothing, whatever the text is."""
    shell = Shell()
    _Reader(text, shell, line=1, depth=0).run()
    return shell


class _Reader:
    """One pass over one text; substitutions are read by a reader of their own."""

    def __init__(self, text: str, shell: Shell, *, line: int, depth: int, into: list[str] | None = None) -> None:
        self._text, self._shell, self._line, self._depth = text, shell, line, depth
        self._into = into  # an array's words are collected here, and are no command
        self._at = 0
        self._word: list[str] = []
        self._begun = False
        self._words: list[str] = []
        self._start = line
        self._skips_next = False  # the next word is where a redirection goes
        self._here: list[tuple[str, bool]] = []
        self._groups: list[tuple[str, int]] = [("", len(shell.commands))]  # what closes each, where its list begins
        self._goes_on = False  # the last end was one that a line's end does not end the list after

    def run(self) -> None:
        text = self._text
        while self._at < len(text):
            plain = _PLAIN.match(text, self._at)
            if plain is not None:
                self._add(plain[0])
                self._at = plain.end()
                continue
            self._special(text[self._at])
        self._end_command("")

    def _special(self, char: str) -> None:
        text, at = self._text, self._at
        if char == "\n":
            self._end_command("")
            self._line += 1
            self._at += 1
            self._skip_here()
        elif char.isspace():
            self._end_word()
            self._at += 1
        elif char == "#":
            self._comment()
        elif char == "\\":
            self._escape()
        elif char == "'":
            self._single(at + 1)
        elif char == '"':
            self._double()
        elif char == "`":
            self._backticks()
        elif char == "$":
            self._dollar()
        elif char == "(" and self._word and self._word[-1].endswith("="):
            self._array()
        elif char in "<>" or (char == "&" and text.startswith("&>", at)):
            self._redirect()
        else:
            self._operator(char)

    def _add(self, text: str) -> None:
        if not self._begun and not self._words:
            self._start = self._line
        self._begun = True
        self._word.append(text)

    def _end_word(self) -> None:
        if self._begun:
            if self._skips_next:
                self._skips_next = False
            else:
                self._words.append("".join(self._word))
        self._word, self._begun = [], False

    def _end_command(self, end: str) -> None:
        self._end_word()
        self._skips_next = False
        if self._into is not None:
            self._into += self._words
        elif self._words or end:
            self._open_or_close()
            _store(self._shell, self._words, self._start, end, is_inner=self._depth > 0)
            self._end_list(end)
        elif not self._goes_on:
            self._end_list(end)
        self._words = []

    def _open_or_close(self) -> None:
        """Groups that these words open, or close."""
        for word in self._words:
            if word in _CLOSES and len(self._groups) < _MAX_GROUPS:
                self._groups.append((_CLOSES[word], len(self._shell.commands)))
            elif word in _CLOSES.values():
                self._close(word)
            elif word not in _BEFORE:
                break

    def _close(self, word: str) -> None:
        if len(self._groups) > 1 and self._groups[-1][0] == word:
            self._groups.pop()

    def _end_list(self, end: str) -> None:
        """Marks what a `&` sends into the background; a list goes on behind `&&`, a pipe, and a group that closes."""
        commands = self._shell.commands
        closes, start = self._groups[-1]
        self._goes_on = end in _GOES_ON
        if end == "(" and len(self._groups) < _MAX_GROUPS:
            self._groups.append((")", len(commands)))
        elif end == ")":
            self._close(end)
        elif not self._goes_on:
            if end == "&":
                commands[start:] = [
                    command if command.is_background else replace(command, is_background=True)
                    for command in commands[start:]
                ]
            self._groups[-1] = (closes, len(commands))

    def _comment(self) -> None:
        if self._begun:  # `a#b` is a word
            self._add("#")
            self._at += 1
            return
        end = self._text.find("\n", self._at)
        self._at = len(self._text) if end < 0 else end

    def _escape(self) -> None:
        following = self._text[self._at + 1 : self._at + 2]
        self._at += 2
        if following == "\n":
            self._line += 1
        else:
            self._add(LATER if following == "$" else following)

    def _single(self, start: int) -> None:
        end = self._text.find("'", start)
        end = len(self._text) if end < 0 else end
        inside = self._text[start:end]
        self._add(inside.replace("$", LATER))
        self._line += inside.count("\n")
        self._at = end + 1

    def _double(self) -> None:
        self._add("")
        self._at += 1
        text = self._text
        while self._at < len(text) and text[self._at] != '"':
            char = text[self._at]
            if char == "\\":
                self._escape()
            elif char == "$":
                self._dollar()
            elif char == "`":
                self._backticks()
            else:
                if char == "\n":
                    self._line += 1
                self._add(char)
                self._at += 1
        self._at += 1

    def _backticks(self) -> None:
        end = self._text.find("`", self._at + 1)
        end = len(self._text) if end < 0 else end
        self._inner(self._text[self._at + 1 : end])
        self._at = end + 1

    def _dollar(self) -> None:
        text, at = self._text, self._at
        if text.startswith("$((", at) or text.startswith("${", at):
            end = closing(text, at + 1)
            self._add(text[at:end])
            self._line += text.count("\n", at, end)
            self._at = end
        elif text.startswith("$(", at):
            end = closing(text, at + 1)
            self._inner(text[at + 2 : max(end - 1, at + 2)])
            self._at = end
        elif text.startswith("$'", at):
            self._single(at + 2)
        else:
            self._add("$")
            self._at += 1

    def _inner(self, inside: str) -> None:
        if self._depth < MAX_DEPTH:
            _Reader(inside, self._shell, line=self._line, depth=self._depth + 1).run()
        self._add(f"$({' '.join(inside.split())[:200]})")
        self._line += inside.count("\n")

    def _array(self) -> None:
        """`NAME=( … )`: the words in it are the variable's value."""
        end = closing(self._text, self._at)
        inside = self._text[self._at + 1 : max(end - 1, self._at + 1)]
        words: list[str] = []
        if self._depth < MAX_DEPTH:
            _Reader(inside, self._shell, line=self._line, depth=self._depth + 1, into=words).run()
        self._add("\n".join(words))
        self._line += inside.count("\n")
        self._at = end

    def _redirect(self) -> None:
        text, at = self._text, self._at
        if self._begun and "".join(self._word).isdigit():
            self._word, self._begun = [], False  # 2>: the number is a file descriptor
        self._end_word()
        heredoc = re.compile(r"<<(-?)[ \t]*(['\"]?)([^\s'\"<>;&|()]+)\2").match(text, at)
        if heredoc is not None and not text.startswith("<<<", at):
            self._here.append((heredoc[3].lstrip("\\"), bool(heredoc[1])))
            self._at = heredoc.end()
            return
        operator = re.compile(r"&>>?|<<<|<>|>>|[<>]&?|>\|").match(text, at)
        width = operator.end() - operator.start() if operator is not None else 1
        self._at += width
        if text.startswith("(", self._at):  # <( … ): a process substitution
            end = closing(text, self._at)
            self._inner(text[self._at + 1 : max(end - 1, self._at + 1)])
            self._at = end
            return
        self._skips_next = True

    def _skip_here(self) -> None:
        for name, is_stripped in self._here:
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                row = self._text[self._at : end]
                self._at = min(end + 1, len(self._text))
                self._line += 1
                if (row.lstrip("\t") if is_stripped else row) == name:
                    break
        self._here = []

    def _operator(self, char: str) -> None:
        two = self._text[self._at : self._at + 2]
        end = two if two in ("&&", "||", "|&", ";;") else char
        self._end_command("|" if end == "|&" else end)
        self._at += len(end)


def closing(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`; the end of the text if none does."""
    opens = text[start : start + 1]
    closes = {"(": ")", "{": "}"}.get(opens, ")")
    depth, at = 0, start
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1
        elif char == "'" and opens == "(":
            end = text.find("'", at + 1)
            at = len(text) if end < 0 else end
        elif char == opens:
            depth += 1
        elif char == closes:
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(text)


def _store(shell: Shell, words: list[str], line: int, end: str, *, is_inner: bool) -> None:
    """Take assignments and leading words off, and keep the command that is left."""
    for word in words:
        for found in _DEFAULT.finditer(word):
            shell.set(found["name"], found["value"], line)
    index = 0
    while index < len(words):
        assigned = _ASSIGNED.fullmatch(words[index])
        if assigned is not None:
            shell.set(assigned["name"], assigned["value"], line)
        elif words[index] != "exec" and words[index] not in _BEFORE:
            break
        index += 1
    rest = without_wrappers(words[index:])
    is_set = rest[1:] if rest and rest[0] in _SETTING else words[index : len(words) - len(rest)]  # `env NAME=… command`
    for word in is_set:
        assigned = _ASSIGNED.fullmatch(word)
        if assigned is not None:
            shell.set(assigned["name"], assigned["value"], line)
    if rest:
        shell.commands.append(Command(line, tuple(rest), end, is_inner))


def without_wrappers(words: Sequence[str]) -> Sequence[str]:
    """`timeout 1h srun …` starts srun."""
    while len(words) > 1 and words[1] not in ("-v", "-V"):  # `command -v` asks
        is_runner = len(words) > 2 and words[0] in _RUNNERS and words[1] == "run"
        if not is_runner and words[0] not in _WRAPPERS:
            break
        words = words[2:] if is_runner else words[1:]
        while len(words) > 1 and _OF_A_WRAPPER.fullmatch(words[0]):
            words = words[2:] if is_runner and len(words) > 2 and words[0] in _WITH_A_WORD else words[1:]
    return words
