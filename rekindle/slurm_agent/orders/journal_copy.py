"""The journal when one version of the agent replaces another.

    python -m rekindle.slurm_agent.orders.journal_copy keep | back JOURNAL COPY

keep  copies the journal for the version that ends
back  puts that copy in the journal's place where the one that is there has another schema (SQLite's user_version), and
      the newer one aside under `.newer`. The orders that were answered or begun since are taken over from it, as far as
      both schemas have the columns, so that nothing is done twice. A journal that the older version can read stays.

No agent may run meanwhile. infra/lifecycle/rekindle_agent.sh calls it.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

USAGE: Final = "usage: python -m rekindle.slurm_agent.orders.journal_copy keep | back JOURNAL COPY"
_BESIDE: Final = ("-wal", "-shm")  # of SQLite's write-ahead log


def save_copy(journal: Path, copy: Path) -> None:
    """A whole copy, or the earlier one as it was. Raises: sqlite3.Error, OSError."""
    beside = copy.with_name(f"{copy.name}.new")
    beside.unlink(missing_ok=True)
    os.close(os.open(beside, os.O_CREAT | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(journal)) as old, closing(sqlite3.connect(beside)) as new:
        old.backup(new)
    os.replace(beside, copy)


def restore_copy(journal: Path, copy: Path) -> bool:
    """True where the copy is in the journal's place now. Raises: sqlite3.Error, OSError."""
    if not copy.exists() or schema_of(copy) == schema_of(journal):
        return False
    newer = journal.with_name(f"{journal.name}.newer")
    save_copy(journal, newer)
    for suffix in _BESIDE:
        journal.with_name(f"{journal.name}{suffix}").unlink(missing_ok=True)
    save_copy(copy, journal)
    try:
        _take_over_orders(journal, newer)
    except sqlite3.Error as err:
        print(f"{journal}: the orders since the upgrade cannot be taken over: {err}", file=sys.stderr)
    return True


def _take_over_orders(journal: Path, newer: Path) -> None:
    """Answered orders, and begun ones that the older version has taken itself: another may be of a kind that it does
    not know. Raises: sqlite3.Error, and then nothing is taken over.
    """
    with closing(sqlite3.connect(journal)) as db:
        db.execute("ATTACH DATABASE ? AS newer", (str(newer),))
        columns = [_columns_of(db, schema) for schema in ("main", "newer")]
        shared = ", ".join(f'"{name}"' for name in columns[0] if name in columns[1])
        with db:
            db.execute(
                f"INSERT OR REPLACE INTO main.orders({shared}) SELECT {shared} FROM newer.orders WHERE state = 'done'"  # noqa: S608
                " OR (state = 'begun' AND token IN (SELECT token FROM main.orders WHERE state != 'done'))"
            )


def _columns_of(db: sqlite3.Connection, schema: str) -> list[str]:
    return [str(row[1]) for row in db.execute(f"PRAGMA {schema}.table_info(orders)")]


def schema_of(path: Path) -> int:
    """Raises: sqlite3.Error."""
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def main(arguments: Sequence[str]) -> int:
    if len(arguments) != 3 or arguments[0] not in ("keep", "back"):
        print(USAGE, file=sys.stderr)
        return 2
    journal, copy = map(Path, arguments[1:])
    try:
        if not journal.exists():
            return 0
        if arguments[0] == "keep":
            save_copy(journal, copy)
        elif restore_copy(journal, copy):
            print(f"{journal} has another schema: the one of before is used, and this one kept as {journal}.newer")
    except (OSError, sqlite3.Error) as err:
        print(f"{journal}: {err}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
