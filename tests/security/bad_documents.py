"""Documents, words and names that somebody may leave where Rekindle reads: one corpus, and every reader there is.

The readers are found, not listed: each message class of the wire, and each function whose needed arguments are texts or
bytes, in the modules that read what others write. A new one is covered when it is written.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

from rekindle.protocol.message import Message

# Where what others write is read: the agent, the wire, checkpoints, log lines, events, the monitor's mailbox.
PACKAGES: Final = (
    "rekindle.slurm_agent",
    "rekindle.checkpoints",
    "rekindle.protocol.cluster",
    "rekindle.signatures",
    "rekindle.monitor",
    "chalicelib.ingest",
)
MODULES: Final = (
    "rekindle.checkpoints.folders",
    "rekindle.protocol.keys",
    "rekindle.protocol.manifests",
    "rekindle.protocol.message",
    "rekindle.protocol.launch_orders",
    "rekindle.protocol.reports",
    "rekindle.protocol.wire",
    "chalicelib.aws.s3.checkpoints",
    "chalicelib.aws.s3.discovered",
    "chalicelib.aws.s3.mailbox",
)
_TEXTS: Final = (str, bytes)

# Whole documents, where JSON is read.
DOCUMENTS: Final[dict[str, bytes]] = {
    "empty": b"",
    "no JSON": b"rekindle",
    "not UTF-8": b'{"v":1,"job_id":"\xff\xfe"}',
    "UTF-16": '{"v":1}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"v":1}',
    "NUL": b'{"v":1,"job_id":"a\\u0000b"}\0',
    "a number beyond floats": b'{"v":1,"loss":1e999,"at":1e999,"step":1e999}',
    "a number of 4,300 digits": b'{"v":1,"step":' + b"9" * 4301 + b"}",
    "a number of 4,000 digits": b'{"v":1,"step":' + b"9" * 4000 + b',"deadline_s":' + b"9" * 4000 + b"}",
    "NaN": b'{"v":1,"loss":NaN}',
    "half a character": b'{"v":1,"job_id":"\\ud800","root":"s3://bucket/\\ud800","why":"\\udfff","data":{"\\ud800":1}}',
    "deep lists": b'{"v":1,"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"v":1,"data":' + b'{"a":' * 900 + b"1" + b"}" * 900 + b"}",
    "a list": b"[1,2,3]",
    "words for numbers": b'{"v":"1","step":"ten","files":"all","nodes":{},"at":7}',
    "other version": b'{"v":2}',
    "lists for words": b'{"v":1,"outcome":["saved"],"kind":{"a":1},"phase":[],"state":{}}',
    "huge": b'{"v":1,"why":"' + b"x" * 9_000_000 + b'"}',
}

# Words and names: a comment, a URI, a path, a log line, a folder, a host list, a Slurm field.
WORDS: Final[dict[str, str]] = {
    "empty": "",
    "blank": " ",
    "an open bracket in a URI": "file://[",
    "a NUL in a URI": "file:///a%00b",
    "no UTF-8 in a URI": "file:///%ff%fe",
    "a host in a URI": "file://[::1]:x/",
    "no bucket": "s3://",
    "half a character": "/fsx/\ud800",
    "half a character in a URI": "s3://bucket/\udc80",
    "a comment": "rekindle,mailbox=file://[,checkpoints=file:///%00,job=\ud800,attempt=slurm..1",
    "NUL": "a\0b",
    "a line break": "a\nb=c d=e",
    "digits of no use": "²³",
    "a number of 4,300 digits": "9" * 4301,
    "a host list without end": "n[" + "0-9," * 5000,
    "a host list of many": "a[1-20000]b[1-20000]",
    "dots": "..",
    "ways out": "../" * 400,
    "percent signs": "%" * 5000,
    "percent numbers": "%9999999999d" * 100,
    "quotes": "'\"" * 3000,
    "brackets": "[" * 5000,
    "blanks": " " * 60_000,
    "one long word": "x" * 65_536,
    "traps": "trap " * 12_000,
    "equal signs": "A=" * 30_000,
    "commas": "," * 60_000,
    "an error each line": "RuntimeError: CUDA error\n" * 2600,
    "other errors each line": "".join(f"ValueError: {n}\nnan\n" for n in range(3000)),
    "step names": "checkpoint-" + "9" * 5000,
    "colours": "\x1b[31m" * 10_000,
    "an epoch too large": "99999999999999999999",
    "a time too large": "9999-12-31T23:59:59-23:59",
}


def all_modules() -> Iterator[types.ModuleType]:
    for package in PACKAGES:
        top = importlib.import_module(package)
        yield top
        for found in pkgutil.walk_packages(top.__path__, f"{package}."):
            if not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)
    for name in MODULES:
        yield importlib.import_module(name)


def messages() -> list[type[Message]]:
    """Every message class of the wire that can be read."""
    list(all_modules())
    found: list[type[Message]] = []
    waiting = [Message]
    while waiting:
        for one in waiting.pop().__subclasses__():
            waiting.append(one)
            if one.__module__.startswith(("rekindle.", "chalicelib.")):
                found.append(one)
    return sorted(set(found), key=lambda one: one.__qualname__)


def readers() -> dict[str, Callable[..., Any]]:
    """Every function of those modules that needs nothing but texts and bytes, and readers of classes that do."""
    found: dict[str, Callable[..., Any]] = {}
    for module in all_modules():
        for name, one in vars(module).items():
            if inspect.isfunction(one) and one.__module__ == module.__name__ and _needs_texts(one):
                found[f"{module.__name__}.{name}"] = one
            if inspect.isclass(one) and one.__module__ == module.__name__:
                for inner, member in vars(one).items():
                    if isinstance(member, classmethod) and _needs_texts(member.__func__, skip=1):
                        found[f"{module.__name__}.{name}.{inner}"] = getattr(one, inner)
    return found


def _needs_texts(function: Callable[..., Any], skip: int = 0) -> bool:
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):
        return False
    needed = [
        parameter
        for parameter in list(inspect.signature(function).parameters.values())[skip:]
        if parameter.default is inspect.Parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return bool(needed) and all(kinds_of(hints.get(one.name)) for one in needed)


def kinds_of(hint: Any) -> frozenset[type]:
    """Which of str and bytes it takes; empty for anything else."""
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return frozenset(option for option in options if option in _TEXTS)


def arguments_of(function: Callable[..., Any], text: str, raw: bytes) -> tuple[list[Any], dict[str, Any]] | None:
    """The same text, or bytes, for every needed argument."""
    hints = typing.get_type_hints(function.__func__ if inspect.ismethod(function) else function)
    args: list[Any] = []
    named: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.default is not inspect.Parameter.empty or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        given: Any = text if str in kinds_of(hints[parameter.name]) else raw
        if parameter.kind is parameter.KEYWORD_ONLY:
            named[parameter.name] = given
        else:
            args.append(given)
    return args, named
