"""What a batch script ends with if what trains in it fails. Pure.

The script's tree is followed as bash would: every command succeeds but for those that train, which fail. What depends
on something unknown goes both ways, and counts only where both ways end alike.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from rekindle.doctor.batch.state import UNKNOWN, State, array_words
from rekindle.sbatch.shell import without_wrappers
from rekindle.sbatch.tree import Chain, Choice, Group, Loop, Node, NotReadError, Pipe, Simple, read_tree

FAILED: Final = 3  # what a command that trains ends with
_MAX_WAYS: Final = 16
_MAX_COMMANDS: Final = 1000  # on one way
_MAX_TURNS: Final = 4  # of a loop
_MAX_CALLS: Final = 8  # of functions within each other
_ASSIGNED: Final = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
_LEAVE: Final = frozenset(("exit", "return", "break", "continue"))
_BUILTINS: Final = frozenset(("set", "trap", "export", "declare", "typeset", "local", "readonly"))
_UNCERTAIN: Final = frozenset(("grep", "egrep", "pgrep", "cmp", "diff", "false"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The script ends with 0. `step` is the line of what failed; `decided` that of what the 0 comes from.

    `by` is what that is: a command's name, `wait`, `exit 0`, `||`, `|`, `if`, `!`.
    """

    step: int
    decided: int
    by: str


class _Exit(Exception):
    """The shell ends, with its status."""


class _Return(Exception):
    """A function ends."""


class _Leave(Exception):
    """`break` or `continue`: its argument."""


class _NoEndError(Exception):
    """This way does not end, or is too long to be followed."""


def lost_failure(
    text: str, trains: Callable[[tuple[str, ...]], bool], *, options: Iterable[str] = (), stops: bool = True
) -> Ending | None:
    """How the script ends with 0 although what trains in it failed; None where it does not, or is not followed.

    All that trains fails, or the last of it alone, or one of those in the background alone. trains: of a command's
    words, whether it is one. options: of the shell, by the script's first line. stops: `set -e` is heeded.
    """
    try:
        tree = read_tree(text)
    except (NotReadError, RecursionError):
        return None
    every = _Runner(tree, trains, set(options), None, stops=stops)
    found = every.ending()
    if found is not None:
        return found
    in_front = [line for line in every.trained if line not in every.in_background]
    alone = in_front[-1:] or sorted(every.in_background)  # beside one in front, those behind it are its servers
    for line in alone[:4] if len(every.trained) > 1 else ():
        found = _Runner(tree, trains, set(options), line, stops=stops).ending()
        if found is not None:
            return found
    return None


class _Runner:
    """One world: all that trains fails, or what stands on one line."""

    def __init__(
        self,
        tree: tuple[Chain, ...],
        trains: Callable[[tuple[str, ...]], bool],
        options: set[str],
        only: int | None,
        *,
        stops: bool,
    ) -> None:
        self._tree, self._trains, self._options, self._only, self._stops = tree, trains, options, only, stops
        self.trained: list[int] = []  # lines, as they come
        self.in_background: set[int] = set()
        self._failed = 0  # the line of what has failed last
        self._decided: tuple[int, str] = (0, "")
        self._swallowed: tuple[int, str] | None = None  # by a pipe or a `||`
        self._ways: list[bool] = []  # what was decided where something was unknown
        self._taken = self._commands = self._calls = 0

    def ending(self) -> Ending | None:
        """Every way is gone, until one ends otherwise."""
        found: Ending | None = None
        for _ in range(_MAX_WAYS):
            self._failed, self._decided, self._swallowed = 0, (0, ""), None
            self._taken = self._commands = self._calls = 0
            try:
                shell = State(options=set(self._options))
                self._body(self._tree, shell)
                status: int | None = shell.status
            except (_NoEndError, NotReadError, RecursionError):
                status = None
            if self._failed and status is not None:
                if status != 0:
                    return None
                line, by = self._decided if self._decided[1] == "exit 0" else self._swallowed or self._decided
                found = found or Ending(step=self._failed, decided=line, by=by)
            del self._ways[self._taken :]
            while self._ways and self._ways[-1]:
                self._ways.pop()
            if not self._ways:
                return found
            self._ways[-1] = True
        return None

    def _body(self, body: tuple[Chain, ...], shell: State) -> None:
        """A shell's whole life: its `exit`, and its trap for it."""
        with contextlib.suppress(_Exit, _Return, _Leave):
            self._list(body, shell)
        action = shell.traps.pop("EXIT", None)
        if action:
            status = shell.status
            with contextlib.suppress(_Exit, _Return, _Leave):
                self._list(read_tree(action), shell, is_asked=True)
                shell.status = status

    def _unknown(self) -> bool:
        if self._taken == len(self._ways):
            self._ways.append(False)
        self._taken += 1
        return self._ways[self._taken - 1]

    def _is_false(self, found: bool | None) -> int:
        return int(not (self._unknown() if found is None else found))

    def _list(self, body: tuple[Chain, ...], shell: State, *, is_asked: bool = False) -> None:
        """is_asked: the script tests the status, so `set -e` does not end the shell."""
        for chain in body:
            if chain.is_background:
                inner, before = shell.copy(), len(self.trained)
                self._body((Chain(chain.pipes, is_background=False),), inner)
                self.in_background.update(self.trained[before:])
                name = f"job{len(shell.jobs)}"
                shell.jobs.append((name, inner.status))
                shell.values["!"] = [name]
                shell.status = 0
                continue
            self._chain(chain, shell, is_asked=is_asked)

    def _chain(self, chain: Chain, shell: State, *, is_asked: bool) -> None:
        last = len(chain.pipes) - 1
        for place, (operator, pipe) in enumerate(chain.pipes):
            if (operator == "&&" and shell.status != 0) or (operator == "||" and shell.status == 0):
                continue
            was_failed = operator == "||" and shell.status != 0
            self._pipe(pipe, shell, is_asked=is_asked or place < last)
            if was_failed and shell.status == 0:
                self._decided = (pipe.line, "||")
                self._swallowed = self._swallowed or self._decided
            if place == last and shell.status != 0 and not is_asked and not pipe.is_negated:
                self._error(shell)

    def _error(self, shell: State) -> None:
        if shell.traps.get("ERR"):
            status = shell.status
            self._list(read_tree(shell.traps["ERR"]), shell, is_asked=True)
            shell.status = status
        if "errexit" in shell.options and self._stops:
            raise _Exit

    def _pipe(self, pipe: Pipe, shell: State, *, is_asked: bool) -> None:
        if len(pipe.parts) == 1:
            self._node(pipe.parts[0], pipe.line, shell, is_asked=is_asked or pipe.is_negated)
            shell.pipe = [shell.status]
        else:
            shell.pipe = []
            for part in pipe.parts:
                inner = shell.copy()
                alone = Chain((("", Pipe(pipe.line, (part,), is_negated=False)),), is_background=False)
                self._body((alone,), inner)
                shell.pipe.append(inner.status)
            failed = [status for status in shell.pipe if status != 0]
            shell.status = failed[-1] if failed and "pipefail" in shell.options else shell.pipe[-1]
            if shell.status == 0:
                self._decided = (pipe.line, "|" if failed else "pipe")
                self._swallowed = self._swallowed or (self._decided if failed else None)
        if pipe.is_negated:
            shell.status = int(shell.status == 0)
            self._decided = (pipe.line, "!")

    def _node(self, node: Node, line: int, shell: State, *, is_asked: bool) -> None:
        if isinstance(node, Simple):
            self._simple(node, shell, is_asked=is_asked)
        elif isinstance(node, Group) and node.is_subshell:
            inner = shell.copy()
            if is_asked:
                inner.options.discard("errexit")
            self._body(node.body, inner)
            shell.status = inner.status
        elif isinstance(node, Group):
            self._list(node.body, shell, is_asked=is_asked)
        elif isinstance(node, Choice):
            self._choice(node, shell, is_asked=is_asked)
        elif isinstance(node, Loop):
            self._loop(node, shell, is_asked=is_asked)
        else:
            shell.functions[node.name] = node.body
            self._end(shell, 0, line, node.name)

    def _choice(self, node: Choice, shell: State, *, is_asked: bool) -> None:
        for condition, body in node.branches:
            if condition is None:
                is_taken = not node.is_case or body is node.branches[-1][1] or self._unknown()
            else:
                self._list(condition, shell, is_asked=True)
                is_taken = shell.status == 0
            if is_taken:
                self._list(body, shell, is_asked=is_asked)
                return
        self._end(shell, 0, node.line, "if")

    def _loop(self, node: Loop, shell: State, *, is_asked: bool) -> None:
        values = shell.words(node.words) if node.name else []
        status, turns = 0, 0
        while True:
            if node.name:
                if turns == min(len(values), _MAX_TURNS):
                    break
                shell.values[node.name] = [values[turns]]
            elif turns > _MAX_TURNS:
                raise _NoEndError
            else:
                self._list(node.condition, shell, is_asked=True)
                if (shell.status == 0) == node.is_until:
                    self._decided = self._decided if turns else (node.line, "if")
                    break
            turns += 1
            try:
                self._list(node.body, shell, is_asked=is_asked)
            except _Leave as leave:
                shell.status = 0
                if leave.args == ("break",):
                    status, self._decided = 0, (node.line, "break")
                    break
            status = shell.status
        shell.status = status

    def _simple(self, node: Simple, shell: State, *, is_asked: bool) -> None:
        self._commands += 1
        if self._commands > _MAX_COMMANDS:
            raise _NoEndError
        words = node.words
        if words[0].startswith("(("):
            self._end(shell, self._is_false(shell.compare(words[0][2:-2])), node.line, "((")
            return
        if words[0] == "let":
            self._end(
                shell, self._is_false(shell.compare("".join(shell.words(words[1:], cuts=False)))), node.line, "let"
            )
            return
        substituted: int | None = None
        while words and (assigned := _ASSIGNED.fullmatch(words[0])):
            substituted = self._assign(assigned, shell)
            words = words[1:]
        if not words:
            if substituted is None:
                self._end(shell, 0, node.line, "=")
            else:
                shell.status = substituted
            return
        if words[0].startswith("[["):
            expanded = ["[[", *shell.words(words[0][2:-2].split(), cuts=False)]
        else:
            expanded = shell.words(words)
        if expanded:
            self._call(expanded, node, shell, is_asked=is_asked)

    def _call(self, words: list[str], node: Simple, shell: State, *, is_asked: bool) -> None:
        """A command with all that is known of its words."""
        line, words = node.line, list(without_wrappers(words))
        program, rest = words[0], words[1:]
        if program == "exec":
            if rest and not rest[0].startswith("-"):
                self._call(rest, node, shell, is_asked=True)
                raise _Exit
            self._end(shell, 0, line, program)
        elif program in shell.functions:
            self._function(shell.functions[program], rest, shell, is_asked=is_asked)
        elif program in ("eval", "bash", "sh") and rest and (program == "eval" or "c" in rest[0][:4]):
            self._text(program, rest, shell, is_asked=is_asked)
        elif program in _LEAVE:
            self._leave(program, rest, node, shell)
        elif program in ("[", "test", "[["):
            self._end(shell, self._is_false(shell.test(rest)), line, program)
        elif program in _BUILTINS:
            self._builtin(program, rest, node, shell)
        elif program == "wait":
            self._wait(rest, shell, line)
        elif self._trains(tuple(words)):
            self.trained.append(line)
            self._end(shell, FAILED if self._only in (None, line) else 0, line, program)
            self._failed = line if shell.status else self._failed
        else:
            is_open = program in _UNCERTAIN or (program == "kill" and rest[:1] == ["-0"])
            self._end(shell, int(is_open and not self._unknown()), line, program)

    def _builtin(self, program: str, rest: list[str], node: Simple, shell: State) -> None:
        if program == "set":
            shell.set_options(rest)
        elif program == "trap":
            shell.trap(rest)
        else:
            for word in node.words[1:]:
                if assigned := _ASSIGNED.fullmatch(word):
                    self._assign(assigned, shell)
        self._end(shell, 0, node.line, program)

    def _end(self, shell: State, status: int, line: int, by: str) -> None:
        shell.status = status
        if status == 0:
            self._decided = (line, by)

    @contextlib.contextmanager
    def _called(self) -> Iterator[None]:
        """Within a function, or a text that the shell reads anew."""
        if self._calls >= _MAX_CALLS:
            raise _NoEndError
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def _function(self, body: Node, arguments: list[str], shell: State, *, is_asked: bool) -> None:
        before, shell.arguments = shell.arguments, arguments
        try:
            with self._called(), contextlib.suppress(_Return):
                self._node(body, 0, shell, is_asked=is_asked)
        finally:
            shell.arguments = before

    def _text(self, program: str, rest: list[str], shell: State, *, is_asked: bool) -> None:
        with self._called():
            if program == "eval":
                self._list(read_tree(" ".join(rest)), shell, is_asked=is_asked)
                return
            inner = State(options={"errexit"} if "e" in rest[0] else set())
            self._body(read_tree(rest[1] if len(rest) > 1 else ""), inner)
            shell.status = inner.status

    def _leave(self, word: str, rest: list[str], node: Simple, shell: State) -> None:
        if word in ("break", "continue"):
            raise _Leave(word)
        if word == "return" and not self._calls:
            shell.status = 1
            return
        if rest:
            shell.status = int(rest[0]) if rest[0].isdigit() else int(not self._unknown())
            if shell.status == 0 and node.words[1:2] == ("0",):
                self._decided = (node.line, f"{word} 0")
        raise _Exit if word == "exit" else _Return

    def _wait(self, rest: list[str], shell: State, line: int) -> None:
        names = [word for word in rest if not word.startswith("-")]
        if "-n" in rest:
            _, status = shell.jobs.pop(0) if shell.jobs else ("", 127)
        elif not names:
            status = 0
            shell.jobs = []
        else:
            known = dict(shell.jobs)
            latest = shell.jobs[-1][1] if shell.jobs else 0
            status = known.get(names[-1], latest)
        self._end(shell, status, line, "wait" if rest else "bare wait")

    def _assign(self, assigned: re.Match[str], shell: State) -> int | None:
        """The status of a substitution that is the value; None where there is none."""
        name, _, more, raw = assigned.groups()
        substituted: int | None = None
        if raw.startswith("("):
            values = shell.words(array_words(raw))
        elif match := re.fullmatch(r"\"?\$\(((?!\().*)\)\"?", raw, re.DOTALL):
            inner = shell.copy()
            self._body(read_tree(match[1]), inner)
            substituted, values = inner.status, [UNKNOWN]
        else:
            values = [" ".join(shell.words((raw,), cuts=False))]
        shell.set(name, values, is_added=bool(more), is_array=raw.startswith("("))
        return substituted
