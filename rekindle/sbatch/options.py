"""How sbatch reads its options: from the `#SBATCH` lines of a script, and from a command line. Pure.

Tried on sbatch 22.05: a line counts if it begins with `#SBATCH` (letters may follow at once), up to the first line that
is neither blank nor a comment; an unescaped `#` ends the line's options, within a word too; quotes and backslashes work
as in a shell; long names may be shortened while they are unambiguous.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rekindle.compat import StrEnum
from rekindle.sbatch.table import CORE, LETTERS, OPTIONS, TakesValue

MAGIC: Final = "#SBATCH"


class Problem(StrEnum):
    """Why sbatch would not take an option as it stands."""

    UNKNOWN = "unknown"
    AMBIGUOUS = "ambiguous"
    NEEDS_VALUE = "needs a value"
    TAKES_NONE = "takes no value"


@dataclass(frozen=True, slots=True)
class ParsedOption:
    """One option as getopt reads it. `name` is its long name, or what was written where there is a problem with it."""

    name: str
    value: str | None = None
    problem: Problem | None = None


def is_option(word: str) -> bool:
    """Whether getopt takes a word for options: `--name`, `-N2`. `-` and `--` are none."""
    return word.startswith("-") and word not in ("-", "--")


def read_word(word: str, following: str | None) -> tuple[list[ParsedOption], int]:
    """The options in one word for which `is_option` holds, and how many following words they take: 0 or 1.

    An unknown long option takes no following word here: only its plug-in knows.
    """
    if word.startswith("--"):
        one, takes = _long(word[2:], following)
        return [one], takes
    return _letters(word[1:], following)


def _long(text: str, following: str | None) -> tuple[ParsedOption, int]:
    given, equals, value = text.partition("=")
    joined = value if equals else None
    name = given if given in OPTIONS else next(iter(longer(given)), given)
    if name not in OPTIONS:
        return ParsedOption(given, joined, Problem.UNKNOWN), 0
    if name != given and len(longer(given)) > 1:
        return ParsedOption(given, joined, Problem.AMBIGUOUS), 0
    takes = OPTIONS[name].takes
    if takes is TakesValue.FLAG and equals:
        return ParsedOption(name, joined, Problem.TAKES_NONE), 0
    if takes is TakesValue.VALUE and not equals:
        return ParsedOption(name, following, None if following is not None else Problem.NEEDS_VALUE), int(
            following is not None
        )
    return ParsedOption(name, joined), 0


def longer(beginning: str) -> list[str]:
    """The options that a shortened name may mean."""
    return [known for known in CORE if known.startswith(beginning)]


def _letters(text: str, following: str | None) -> tuple[list[ParsedOption], int]:
    found: list[ParsedOption] = []
    for position, char in enumerate(text):
        spec, rest = LETTERS.get(char), text[position + 1 :]
        if spec is None:
            return [*found, ParsedOption(f"-{char}", problem=Problem.UNKNOWN)], 0
        if spec.takes is TakesValue.VALUE:
            if rest:
                return [*found, ParsedOption(spec.name, rest.removeprefix("="))], 0
            problem = None if following is not None else Problem.NEEDS_VALUE
            return [*found, ParsedOption(spec.name, following, problem)], int(following is not None)
        if spec.takes is TakesValue.OPTIONAL:
            return [*found, ParsedOption(spec.name, rest or None)], 0
        found.append(ParsedOption(spec.name))
    return found, 0


def of_script(script: str) -> dict[str, str | None]:
    """The options of the `#SBATCH` lines before a script's first command, by long name; the last one counts.

    What sbatch would refuse is left out; an option that is not its own takes the next word for its value.
    """
    found: dict[str, str | None] = {}
    for _, line in directives(script.split("\n")):
        words, open_quote = arguments(line)
        found |= {} if open_quote else of_words(words)
    return found


def directives(lines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(the line's index, what follows `#SBATCH`) of those before the first command."""
    for index, line in enumerate(lines):
        if line.startswith(MAGIC):
            yield index, line[len(MAGIC) :]
        elif line.strip() and not line.lstrip().startswith("#"):
            return


def of_words(words: Sequence[str]) -> dict[str, str | None]:
    """The options among words, by long name, None without a value; other words are passed over."""
    found: dict[str, str | None] = {}
    at = 0
    while at < len(words):
        word, following = words[at], words[at + 1] if at + 1 < len(words) else None
        at += 1
        if not is_option(word):
            continue
        options, taken = read_word(word, following)
        last = options[-1]
        if last.problem is Problem.UNKNOWN and last.value is None and following and not following.startswith("-"):
            options[-1], taken = ParsedOption(last.name, following), 1
        found |= {option.name: option.value for option in options}
        at += taken
    return found


def arguments(text: str) -> tuple[list[str], str | None]:
    """The words of one `#SBATCH` line, as sbatch cuts them, and the quote that is not closed (sbatch stops at it).

    An unescaped `#` ends them, and so does an empty word ("" stands for none). A backslash takes away the meaning of a
    quote and of `#`, not of a blank.
    """
    words: list[str] = []
    word: list[str] = []
    quote, escaped, begun = "", False, False
    for char in f"{text} ":
        if char.isspace() and not quote:
            if begun and not word:
                return words, None
            words += ["".join(word)] if begun else []
            word, begun, escaped = [], False, False
        elif escaped:
            word.append(char)
            escaped = False
        elif char == "\\":
            escaped = begun = True
        elif quote:
            if char == quote:
                quote = ""
            else:
                word.append(char)
        elif char in "'\"":
            quote, begun = char, True
        elif char == "#":
            return [*words, "".join(word)] if word else words, None
        else:
            word.append(char)
            begun = True
    return words, quote or None
