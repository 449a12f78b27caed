"""docs/reference/cli.md: every command of `rekindle`, from its parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import Final

from infra.tables import cell, code, page, table
from rekindle.cli.main import build_parser
from rekindle.client.errors import MEANINGS

PAGE: Final = "docs/reference/cli.md"
_COMMON: Final = ("--api", "--store", "--stack")
_WIDTH: Final = 84  # of a block of code on the site
_SENTENCE: Final = re.compile(r"(?<=[a-z)])[.;] (?=[A-Z0-9])|\.$")
_OF_ARGPARSE: Final = re.compile(r"%(?:\((\w+)\)s|%)")


def page_text() -> str:
    parser = build_parser()
    leaves = list(_leaves(parser, parser.prog))
    about = [
        "Names, times, the console and which service is spoken to: [cli.md](../cli.md). Every command has `--help`.",
        "",
        *table(
            ("command", "what it does"),
            ((_link(name), cell(_SENTENCE.split(_about(command))[0])) for name, command in leaves),
        ),
        "## Options of every command that speaks to the service",
        "",
        *table(("option", "meaning"), (_row(action) for action in _options(parser) if _is_common(action))),
        "## Exit codes",
        "",
        *table(("code", "meaning"), ((str(int(value)), cell(meaning)) for value, meaning in MEANINGS.items())),
    ]
    return page(
        "Command line: every command", about, (line for name, command in leaves for line in _command(name, command))
    )


def _command(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield from (f"## `{name}`", "", f"{_sentence(_about(parser))}", "", "```text", _usage(name, parser), "```", "")
    arguments = [action for action in parser._actions if not action.option_strings and not _holds_commands(action)]
    yield from table(("argument", "meaning"), (_row(argument) for argument in arguments if argument.help))
    yield from table(("option", "meaning"), (_row(option) for option in _options(parser) if not _is_common(option)))


def _leaves(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Every command that can be given; one whose inner commands may be left out is one of them."""
    inner = next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)
    if name != parser.prog.split()[0] and (inner is None or not inner.required):
        yield name, parser
    if inner is not None:
        for listed in inner._get_subactions():  # one without a help is not listed
            yield from _leaves(inner.choices[listed.dest], f"{name} {listed.dest}")


def _about(parser: argparse.ArgumentParser) -> str:
    return (parser.description or "").strip().split("\n\n")[0]


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    """Without what every command has; the same whatever the terminal's width."""
    actions = [*_options(parser), *(action for action in parser._actions if not action.option_strings)]
    words = [_used(action) for action in actions if not _is_common(action) and not _holds_commands(action)]
    lines = [name]
    for word in words:
        if len(lines[-1]) + 1 + len(word) > _WIDTH:
            lines.append(" " * len(name))
        lines[-1] += f" {word}"
    return "\n".join(lines)


def _used(action: argparse.Action) -> str:
    if not action.option_strings:
        return _name(action)
    text = _name(action)
    return text if action.required else f"[{text}]"


def _name(action: argparse.Action) -> str:
    """An option with its value, or an argument as it is repeated."""
    value = _value(action)
    if not action.option_strings:
        return value
    longest = max(action.option_strings, key=len)
    return f"{longest} {value}".rstrip()


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.metavar is not None:
        one = action.metavar if isinstance(action.metavar, str) else " ".join(action.metavar)
    elif action.choices is not None:
        one = "{" + ",".join(str(choice) for choice in action.choices) + "}"
    else:
        one = action.dest.upper() if action.option_strings else action.dest
    match action.nargs:
        case "?":
            return f"[{one}]"
        case "*" | argparse.REMAINDER:
            return f"[{one} ...]"
        case "+":
            return f"{one} [{one} ...]"
        case _:
            return one


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [
        action
        for action in parser._actions
        if action.option_strings and action.dest not in ("help", "version") and action.help != argparse.SUPPRESS
    ]


def _is_common(action: argparse.Action) -> bool:
    return any(option in _COMMON for option in action.option_strings)


def _holds_commands(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _row(action: argparse.Action) -> tuple[str, str]:
    return code(_name(action)), _meaning(action)


def _meaning(action: argparse.Action) -> str:
    text = _OF_ARGPARSE.sub(lambda match: str(getattr(action, match[1])) if match[1] else "%", action.help or "")
    needed = "needed" if action.option_strings and action.required else ""
    return cell("; ".join(part for part in (text, needed) if part))


def _sentence(text: str) -> str:
    return text[:1].upper() + cell(text)[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def _link(name: str) -> str:
    return f"[`{name}`](#{name.replace(' ', '-')})"
