"""What is large has a reason, and a reason has something large."""

from __future__ import annotations

from infra import sizes


def test_a_large_file_without_a_row_and_a_row_for_a_small_one_are_both_named() -> None:
    found = {"a.py": 401, "b.py": 400, "c.py": 500}
    faults = list(sizes.compared("lines", found, {"b.py": "one class", "c.py": "a table", "gone.py": "it was"}, 400))
    assert [fault.partition(":")[0] for fault in faults] == ["a.py", "b.py", "gone.py"]


def test_the_fields_of_a_record_are_counted_and_its_methods_are_not() -> None:
    text = "@dataclass\nclass A:\n    x: int\n    y: int = 2\n    def z(self) -> int: ...\nclass B:\n    x: int\n"
    assert list(sizes.records("a.py", text)) == [("a.py:A", 2)]


def test_the_house_has_a_reason_for_each() -> None:
    assert sizes.main() == 0
