"""The list of banned words: what it finds, what it passes over, and how its baseline falls."""

from __future__ import annotations

import json

import pytest

from infra.words import BANNED, BASELINE, code_hits, docstring_hits, files, hits, hits_of, problems


def words(text: str) -> list[str]:
    return [one.text for one in hits(text)]


@pytest.mark.parametrize("row", BANNED, ids=[row.pattern for row in BANNED])
def test_every_row_has_a_replacement_and_a_reason(row: object) -> None:
    assert row.instead  # type: ignore[attr-defined]
    assert row.why  # type: ignore[attr-defined]


def test_words_are_found_whatever_their_case_and_only_whole_ones() -> None:
    assert words("Nobody was told.\n\nWhoever asks") == ["Nobody", "told", "Whoever"]
    assert words("The untold melted lemonade beatific unsaid") == []
    assert words("It goes on by itself; the next look bears it out") == [
        "goes on",
        "by itself",
        "next look",
        "bears it out",
    ]


def test_code_links_and_file_names_are_passed_over() -> None:
    assert words("`nobody` and [suspect hardware](hardware.md), hardware.md\n\n```\nnobody\n```\n") == []
    assert [one.line for one in hits("a\n\n```\nnobody\n```\nnobody\n")] == [6]


def test_docstrings_are_found_apart_from_other_strings_and_comments() -> None:
    source = '"""Told."""\n\nX = "nobody"  # nobody\n\n\ndef f() -> None:\n    """Fine.\n\n    Nobody.\n    """\n'
    assert [(one.line, one.text) for one in docstring_hits(source)] == [(1, "Told"), (9, "Nobody")]


def test_of_a_decision_record_the_title_counts_and_of_the_changelog_what_is_unreleased() -> None:
    assert [one.text for one in hits_of("docs/adr/0001-a.md", "# 0001 · Told\n\nnobody\n")] == ["Told"]
    assert [one.text for one in hits_of("docs/adr/README.md", "# A\n\nnobody\n")] == ["nobody"]
    assert [one.text for one in hits_of("CHANGELOG.md", "## [Unreleased]\n\ntold\n\n## [0.1.0]\n\nnobody\n")] == [
        "told"
    ]


def test_a_new_word_and_a_stale_entry_are_problems_and_a_fallen_count_is_none() -> None:
    two = list(hits("nobody was told"))
    assert problems({"a.md": two}, {"a.md": 2}) == []
    assert problems({"a.md": two[:1]}, {"a.md": 2}) == []
    assert problems({"a.md": two}, {"a.md": 1})[0] == "a.md: 2 banned words, 1 allowed"
    assert problems({"a.md": two}, {})[1].startswith("  a.md:1: 'nobody': no one")
    assert problems({}, {"a.md": 1}) == [f"a.md: clean or gone; take it out of {BASELINE.name}"]


def test_the_baseline_names_files_that_are_held_to_the_list() -> None:
    assert set(json.loads(BASELINE.read_text(encoding="utf-8"))) <= set(files())


def test_names_and_literals_are_held_to_the_list_and_comments_are_not() -> None:
    source = (
        '"""A module."""\n'
        "whiteboard = 1\n"
        "whiteboard = 2  # nobody reads comments\n"
        "def is_told(said: str) -> str:\n"
        '    """A function."""\n'
        '    return f"nobody asked {said}" + "`told` is code"\n'
    )
    found = [(hit.line, hit.text) for hit in code_hits(source)]
    assert sorted(found) == [(2, "whiteboard"), (4, "is_told"), (4, "said"), (6, "nobody")]


def test_a_part_of_another_word_is_no_banned_name() -> None:
    assert not list(code_hits("heartbeats = 1\nsaidar = 2\nretold = 3\n"))
