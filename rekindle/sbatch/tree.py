"""A shell script as a tree: lists, pipelines, groups, conditions, loops, functions. Pure.

Words stay as they are written, with their quotes; redirections and here-documents are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from rekindle.sbatch.shell import closing

MAX_DEPTH: Final = 24  # of groups within groups
MAX_TOKENS: Final = 40_000
_BLANK: Final = re.compile(r"(?:[ \t\r]|\\\n)+")
_PLAIN: Final = re.compile(r"[^\s'\"\\$`;&|<>()]+")
_REDIRECTION: Final = re.compile(r"(?:\d{1,3})?(?:&>>?|<<<|<>|>>|[<>]&?|>\|)")
_HERE: Final = re.compile(r"\d{0,3}<<(-?)[ \t]*(['\"]?)([^\s'\"<>;&|()]+)\2")
_OPERATOR: Final = re.compile(r"&&|\|\||;;&|;;|;&|\|&|[;&|()\n]")
_ENDS: Final = frozenset(("then", "elif", "else", "fi", "do", "done", "esac", "}", ")", ";;", ";&", ";;&", ""))


class NotReadError(Exception):
    """The text is no script that this parser follows."""


@dataclass(frozen=True, slots=True)
class Simple:
    """A command with its assignments; `[[ … ]]` and `(( … ))` are one, too."""

    line: int
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pipe:
    """Commands joined by `|`, or one alone."""

    line: int
    parts: tuple[Node, ...]
    is_negated: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """Pipelines joined by `&&` and `||`, each with the operator before it; the first has none."""

    pipes: tuple[tuple[str, Pipe], ...]
    is_background: bool


@dataclass(frozen=True, slots=True)
class Group:
    """`{ … }`, or `( … )`, which is a shell of its own."""

    body: tuple[Chain, ...]
    is_subshell: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """`if` and `case`: each branch with its condition, None for `else` and for a pattern."""

    line: int
    branches: tuple[tuple[tuple[Chain, ...] | None, tuple[Chain, ...]], ...]
    is_case: bool


@dataclass(frozen=True, slots=True)
class Loop:
    """`while`, `until` and `for`; the latter has a name and no condition."""

    line: int
    condition: tuple[Chain, ...]
    body: tuple[Chain, ...]
    is_until: bool
    name: str = ""
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Function:
    """A definition."""

    name: str
    body: Node


Node = Simple | Group | Choice | Loop | Function


def read_tree(text: str) -> tuple[Chain, ...]:
    """The script's lists. Raises NotReadError."""
    parser = _Parser(_tokens(text))
    body = parser.list(0)
    if parser.text:
        raise NotReadError(parser.text)
    return body


def _tokens(text: str) -> list[tuple[str, str, int]]:
    """(kind, text, line) of each: `word` or `op`, whose newlines and `;` are alike."""
    found: list[tuple[str, str, int]] = []
    at, line = 0, 1
    here: list[tuple[str, bool]] = []
    while at < len(text):
        blank = _BLANK.match(text, at)
        if blank:
            line += blank[0].count("\n")
            at = blank.end()
            continue
        if len(found) > MAX_TOKENS:
            raise NotReadError("too long")
        if text[at] == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        heredoc = _HERE.match(text, at)
        if heredoc and not text.startswith("<<<", at):
            here.append((heredoc[3].lstrip("\\"), bool(heredoc[1])))
            at = heredoc.end()
            continue
        redirection = _REDIRECTION.match(text, at)
        if redirection and not text.startswith(("<(", ">("), at):
            at = redirection.end()
            blank = _BLANK.match(text, at)
            at = _word_end(text, blank.end() if blank else at)
            line += text.count("\n", redirection.start(), at)
            continue
        is_start = not found or found[-1][0] == "op" or found[-1][1] in ("if", "elif", "while", "until", "then", "do")
        if is_start and text.startswith(("((", "[["), at):
            end = text.find("))" if text[at] == "(" else "]]", at)
            end = len(text) if end < 0 else end + 2
            found.append(("word", text[at:end], line))
            line += text.count("\n", at, end)
            at = end
            continue
        operator = _OPERATOR.match(text, at)
        if operator is None:
            end = max(_word_end(text, at), at + 1)
            found.append(("word", text[at:end], line))
            line += text.count("\n", at, end)
            at = end
            continue
        found.append(("op", operator[0], line))
        at = operator.end()
        if operator[0] == "\n":
            line += 1
            at, line = _behind_documents(text, at, line, here)
            here = []
    return found


def _behind_documents(text: str, at: int, line: int, here: list[tuple[str, bool]]) -> tuple[int, int]:
    for name, is_stripped in here:
        while at < len(text):
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            row = text[at:end]
            at, line = min(end + 1, len(text)), line + 1
            if (row.lstrip("\t") if is_stripped else row) == name:
                break
    return at, line


def _word_end(text: str, at: int) -> int:
    """Where the word that begins here ends: quotes, substitutions and arrays are parts of it."""
    begin = at
    while at < len(text):
        plain = _PLAIN.match(text, at)
        if plain:
            at = plain.end()
            continue
        char = text[at]
        if char == "\\":
            at += 2
        elif char == "'":
            end = text.find("'", at + 1)
            at = len(text) if end < 0 else end + 1
        elif char == '"':
            at = _quoted_end(text, at + 1)
        elif char == "`":
            end = text.find("`", at + 1)
            at = len(text) if end < 0 else end + 1
        elif char == "$":
            at = closing(text, at + 1) if text.startswith(("$(", "${"), at) else at + 1
        elif char == "(" and text[at - 1 : at] == "=" and at > begin:
            at = closing(text, at)
        elif char in "<>" and text.startswith("(", at + 1) and at == begin:
            at = closing(text, at + 1)
        else:
            break
    return min(at, len(text))


def _quoted_end(text: str, at: int) -> int:
    while at < len(text) and text[at] != '"':
        if text[at] == "\\":
            at += 2
        elif text.startswith(("$(", "${"), at):
            at = closing(text, at + 1)
        else:
            at += 1
    return at + 1


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[tuple[str, str, int]]) -> None:
        self._tokens, self._at = tokens, 0

    @property
    def text(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    @property
    def _line(self) -> int:
        return self._tokens[min(self._at, len(self._tokens) - 1)][2] if self._tokens else 0

    def _take(self, *expected: str) -> str:
        text = self.text
        if self._at >= len(self._tokens) or (expected and text not in expected):
            raise NotReadError(text)
        self._at += 1
        return text

    def _skip(self, *texts: str) -> None:
        while self._at < len(self._tokens) and self.text in texts:
            self._at += 1

    def list(self, depth: int) -> tuple[Chain, ...]:
        """Up to a word or an operator that ends it."""
        if depth > MAX_DEPTH:
            raise NotReadError("too deep")
        found = []
        self._skip("\n", ";")
        while self.text not in _ENDS:
            pipes = [("", self._pipe(depth))]
            while self.text in ("&&", "||"):
                operator = self._take()
                self._skip("\n")
                pipes.append((operator, self._pipe(depth)))
            found.append(Chain(tuple(pipes), self.text == "&"))
            if self.text not in _ENDS:
                self._take("&", ";", "\n")
            self._skip("\n", ";")
        return tuple(found)

    def _pipe(self, depth: int) -> Pipe:
        line, is_negated = self._line, False
        while self.text in ("!", "time", "-p"):
            is_negated ^= self._take() == "!"
        parts = [self._command(depth)]
        while self.text in ("|", "|&"):
            self._take()
            self._skip("\n")
            parts.append(self._command(depth))
        return Pipe(line, tuple(parts), is_negated)

    def _command(self, depth: int) -> Node:
        line, word = self._line, self.text
        if word in ("{", "("):
            self._take()
            body = self.list(depth + 1)
            self._take("}" if word == "{" else ")")
            return Group(body, word == "(")
        if word == "if":
            return self._if(depth, line)
        if word in ("while", "until"):
            self._take()
            condition = self.list(depth + 1)
            return Loop(line, condition, self._do(depth), word == "until")
        if word in ("for", "select"):
            return self._for(depth, line)
        if word == "case":
            return self._case(depth, line)
        if word == "function":
            self._take()
            return self._function(self._take(), depth)
        words = []
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "word":
            words.append(self._take())
        if len(words) == 1 and self.text == "(":
            return self._function(words[0], depth)
        if not words:
            raise NotReadError(self.text)
        return Simple(line, tuple(words))

    def _function(self, name: str, depth: int) -> Function:
        if self.text == "(":
            self._take()
            self._take(")")
        self._skip("\n")
        if depth > MAX_DEPTH:
            raise NotReadError("too deep")
        return Function(name, self._command(depth + 1))

    def _if(self, depth: int, line: int) -> Choice:
        branches: list[tuple[tuple[Chain, ...] | None, tuple[Chain, ...]]] = []
        word = self._take("if")
        while word in ("if", "elif"):
            condition = self.list(depth + 1)
            self._take("then")
            branches.append((condition, self.list(depth + 1)))
            word = self._take("elif", "else", "fi")
        if word == "else":
            branches.append((None, self.list(depth + 1)))
            self._take("fi")
        return Choice(line, tuple(branches), is_case=False)

    def _do(self, depth: int) -> tuple[Chain, ...]:
        self._skip("\n", ";")
        self._take("do")
        body = self.list(depth + 1)
        self._take("done")
        return body

    def _for(self, depth: int, line: int) -> Loop:
        self._take()
        name, words = self._take(), []
        if name == "(":  # for (( … ))
            while self.text not in ("do", ""):
                self._take()
            return Loop(line, (), self._do(depth), is_until=False, name="_", words=("1", "2"))
        self._skip("\n")
        if self.text == "in":
            self._take()
            while self.text not in ("\n", ";", "do", ""):
                words.append(self._take())
        return Loop(line, (), self._do(depth), is_until=False, name=name, words=tuple(words))

    def _case(self, depth: int, line: int) -> Choice:
        self._take()
        while self.text not in ("in", ""):
            self._take()
        self._take("in")
        self._skip("\n")
        branches: list[tuple[tuple[Chain, ...] | None, tuple[Chain, ...]]] = []
        while self.text != "esac":
            while self._take() != ")":
                pass
            branches.append((None, self.list(depth + 1)))
            self._skip(";;", ";&", ";;&", "\n")
        self._take("esac")
        return Choice(line, tuple(branches), is_case=True)
