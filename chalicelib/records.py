"""The methods of records (dataclasses), compiled when the bundle is packed instead of at each cold start.

`dataclasses` writes each class's methods as text and executes that text: a fifth of what a function did at its init was
compiling such texts. The bundle holds them compiled, each under a digest of its text (`infra/records.py` makes the
file). A text that is not there is compiled as ever, so another patch release of Python, which may write other texts,
costs time and changes nothing.
"""

from __future__ import annotations

import dataclasses
import marshal
from collections.abc import Mapping
from hashlib import blake2b
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import CodeType
from typing import Any, Final

FILE: Final = Path(__file__).with_suffix(".bin")


def digest(text: str) -> bytes:
    """What a text is filed under: equal for equal texts only."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def compiled(text: str) -> CodeType:
    """As `exec` compiles a text that stands in the standard library: without the future statements of a caller."""
    return compile(text, "<string>", "exec", dont_inherit=True)


def written(codes: Mapping[bytes, CodeType]) -> bytes:
    """The file. Version 2 of the format holds no references, so the same codes give the same bytes."""
    return MAGIC_NUMBER + marshal.dumps({key: marshal.dumps(codes[key], 2) for key in sorted(codes)}, 2)


def use(path: Path = FILE) -> bool:
    """Have `dataclasses` take its methods from the file; False where there is none, or one of another Python."""
    try:
        raw = path.read_bytes()
    except OSError:
        return False
    if not raw.startswith(MAGIC_NUMBER):
        return False
    known: dict[bytes, bytes] = marshal.loads(raw[len(MAGIC_NUMBER) :])  # noqa: S302  our own file, as .pyc files are

    def execute(text: str, names: dict[str, Any], local: dict[str, Any]) -> None:
        code = known.get(digest(text))
        exec(compiled(text) if code is None else marshal.loads(code), names, local)  # noqa: S102, S302

    # The module looks `exec` up among its own names before the built-in ones.
    setattr(dataclasses, "exec", execute)  # noqa: B010  mypy takes no plain assignment
    return True
