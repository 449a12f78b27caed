"""What is given back by an agent that leaves, and the journal that goes along when versions change."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.cluster.names import agent_key, attempt_key
from rekindle.protocol.cluster.orders import Verb
from rekindle.slurm_agent.leaving import give_back, remove_state
from rekindle.slurm_agent.orders import journal_copy as keeping
from tests.agent.ctld import job
from tests.agent.test_orders import submit
from tests.agent.world import BUCKET, World

PENDING = SlurmState.PENDING


def left(world: World, *, is_dry: bool = False) -> tuple[bool, list[str]]:
    said: list[str] = []
    is_all = give_back(world.ctld, world.agent.journal, said.append, is_dry=is_dry)
    return is_all, said


def test_a_job_that_our_order_holds_is_released_and_one_that_its_user_holds_is_named(world: World) -> None:
    world.ctld.put(job(7))
    world.obey(world.order(Verb.HOLD, attempt="slurm.lab.7", slurm_job=7))
    world.ctld.put(job(7, restart=1, state=PENDING, held=True))
    world.ctld.put(job(8, state=PENDING, held=True))
    world.ctld.commands.clear()
    assert left(world, is_dry=True)[1] == [
        "would    release job 7 (slurm.lab.7.r1)",
        "note     job 8 (slurm.lab.8) waits held, not by us: it is left so",
    ]
    assert world.ctld.commands == []
    is_all, said = left(world)
    assert (is_all, world.ctld.commands) == (True, ["release 7"])
    assert said[0] == "done     release job 7 (slurm.lab.7.r1)"


def test_a_job_that_we_let_go_and_its_user_held_again_is_its_users(world: World) -> None:
    world.ctld.put(job(7))
    world.obey(world.order(Verb.HOLD, attempt="slurm.lab.7", slurm_job=7))
    world.ctld.put(job(7, restart=1, state=PENDING, held=True))
    world.obey(world.order(Verb.REQUEUE, "order-2", attempt="slurm.lab.7", new_attempt="slurm.lab.7.r1", slurm_job=7))
    world.ctld.put(job(7, restart=1, state=PENDING, held=True))
    world.ctld.commands.clear()
    assert left(world)[0]
    assert world.ctld.commands == []


def test_without_a_journal_the_whiteboard_tells_who_put_it_back(world: World) -> None:
    world.ctld.put(job(7, restart=1, state=PENDING, held=True))
    world.ctld.written["slurm.lab.7"] = replace(job(7), requeued_by=EndedBy.AGENT)
    assert left(world)[0]
    assert world.ctld.commands == ["release 7"]


def test_a_hold_that_may_be_an_administrators_is_left(world: World) -> None:
    world.ctld.put(job(7, restart=1, state=PENDING, held=True))
    world.ctld.written["slurm.lab.7"] = replace(job(7), requeued_by=EndedBy.AGENT)
    world.ctld.held_by_admin.add(7)
    assert left(world) == (True, ["note     job 7 (slurm.lab.7.r1) waits held, not by us: it is left so"])
    world.ctld.tells_no_holder = True
    is_all, said = left(world)
    assert (is_all, world.ctld.commands) == (False, [])
    assert said[0].startswith("LEFT     job 7 (slurm.lab.7.r1) waits held, and by whom is not known: squeue")


def test_a_copy_beside_the_one_that_the_order_was_answered_with_is_cancelled(world: World) -> None:
    world.ctld.put(job(7, state=SlurmState.FAILED))
    answer = world.carry_out(submit(world))
    copy = world.ctld.jobs[answer.slurm_job or 0]
    world.ctld.jobs[90] = replace(copy, slurm_job=90, state=PENDING, held=True)  # slurmctld has made it late
    world.ctld.jobs[copy.slurm_job] = replace(copy, state=PENDING, held=True)  # its owner holds it
    world.ctld.commands.clear()
    is_all, said = left(world)
    assert (is_all, world.ctld.commands) == (True, ["cancel_copy 90"])
    assert said[-1] == "done     cancel job 90 (slurm.lab.7-a2): a copy too many"


def test_nodes_drained_by_us_go_back_and_nobody_elses(world: World) -> None:
    world.ctld.put_node("n1", "idle", "drain", reason="rekindle:inc-1")
    world.ctld.put_node("n2", "idle", "drain", reason="bob: bad fan")
    world.ctld.put_node("n3", "idle", "drain", "invalid_reg", reason="rekindle:inc-1")
    is_all, said = left(world)
    assert (is_all, world.ctld.commands) == (True, ["resume n1"])
    assert any(line.startswith("note     resume node n3") for line in said)
    assert left(world)[0], "again is the same"


def test_a_slurmctld_that_is_away_leaves_everything_and_says_so(world: World) -> None:
    world.ctld.is_away = True
    assert left(world) == (False, ["MISSING  Slurm: Unable to contact slurm controller"])


def test_what_slurm_refuses_is_left_and_told(world: World) -> None:
    world.ctld.put_node("n1", "idle", "drain", reason="rekindle:inc-1")
    world.ctld.refuses = "no"
    is_all, said = left(world)
    assert not is_all
    assert said[0].startswith("LEFT     resume node n1")


def test_what_was_done_although_slurm_answered_with_an_error_is_done(world: World) -> None:
    """Slurm 22.05 resumes a node that has not registered since slurmctld started, and calls its state invalid."""
    world.ctld.put_node("n1", "idle", "drain", reason="rekindle:inc-1")
    world.ctld.loses_answers = 1
    assert left(world) == (True, ["done     resume node n1 (rekindle:inc-1)"])


# ---- the journal between versions ------------------------------------------------------------------------------------


def database(path: Path, schema: int, word: str) -> Path:
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute(f"PRAGMA user_version={schema}")
        db.execute("CREATE TABLE said(word TEXT)")
        db.execute("INSERT INTO said VALUES(?)", (word,))
        db.commit()
    return path


def word_in(path: Path) -> str:
    with closing(sqlite3.connect(path)) as db:
        return str(db.execute("SELECT word FROM said").fetchone()[0])


@pytest.mark.parametrize(("schema", "used"), [(0, "newer"), (1, "older")])
def test_a_version_goes_back_with_a_journal_that_it_can_read(tmp_path: Path, schema: int, used: str) -> None:
    journal, copy = database(tmp_path / "agent.sqlite", 0, "older"), tmp_path / "kept.sqlite"
    assert keeping.main(["keep", str(journal), str(copy)]) == 0
    assert copy.stat().st_mode & 0o777 == 0o600
    journal.unlink()
    database(journal, schema, "newer")
    assert keeping.main(["back", str(journal), str(copy)]) == 0
    assert word_in(journal) == used
    aside = tmp_path / "agent.sqlite.newer"
    assert aside.exists() is (used == "older"), "what the newer version has written is not lost"
    assert not aside.exists() or word_in(aside) == "newer"


def drained_since_the_upgrade(world: World, folder: Path, *, schema: str) -> tuple[Path, Path]:
    """A drain is taken and not carried out; the newer version drains the node, and a person resumes it."""
    journal, copy = world.settings.state_dir / "agent.sqlite", folder / "kept.sqlite"
    world.ctld.put_node("n1", "idle")
    world.ctld.is_away = True
    world.agent.executor.take(world.order(Verb.DRAIN, node="n1", incident_id="inc-1").to_json().decode())
    world.agent.executor.work()
    assert keeping.main(["keep", str(journal), str(copy)]) == 0
    world.ctld.is_away = False
    world.clock.forward(60)
    world.agent.executor.work()
    assert [command.split()[:2] for command in world.ctld.commands] == [["drain", "n1"]]
    with closing(sqlite3.connect(journal)) as db:
        db.executescript(schema)
    world.ctld.put_node("n1", "idle")
    world.ctld.commands.clear()
    return journal, copy


@pytest.mark.parametrize(
    "schema",
    [
        "PRAGMA user_version=9; ALTER TABLE orders ADD COLUMN more TEXT",
        "PRAGMA user_version=9; ALTER TABLE orders DROP COLUMN tries",
    ],
)
def test_an_order_carried_out_since_the_upgrade_is_not_carried_out_again(
    world: World, tmp_path: Path, schema: str
) -> None:
    journal, copy = drained_since_the_upgrade(world, tmp_path, schema=schema)
    assert keeping.main(["back", str(journal), str(copy)]) == 0
    world.start()
    world.clock.forward(60)
    world.agent.executor.work()
    assert world.ctld.commands == []


def test_orders_that_the_older_version_cannot_have_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, copy = database(tmp_path / "agent.sqlite", 0, "older"), tmp_path / "kept.sqlite"
    assert keeping.main(["keep", str(journal), str(copy)]) == 0
    with closing(sqlite3.connect(journal)) as db:
        db.executescript("PRAGMA user_version=1")
    assert keeping.main(["back", str(journal), str(copy)]) == 0
    assert "cannot be taken over" in capsys.readouterr().err


def test_no_journal_is_nothing_to_keep_and_a_broken_one_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal, copy = tmp_path / "agent.sqlite", tmp_path / "kept.sqlite"
    assert keeping.main(["keep", str(journal), str(copy)]) == 0
    assert not copy.exists()
    journal.write_bytes(b"this is no database" * 100)
    assert keeping.main(["keep", str(journal), str(copy)]) == 1
    assert str(journal) in capsys.readouterr().err
    assert keeping.main(["keep"]) == 2


# ---- what is kept of the cluster -------------------------------------------------------------------------------------


def test_what_is_kept_of_the_cluster_goes_and_no_other_clusters(world: World) -> None:
    said: list[str] = []
    s3 = world.cloud.client("s3")
    for key in (agent_key("lab"), attempt_key("slurm.lab.7"), agent_key("lab-2")):
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"{}")
    assert remove_state(s3, BUCKET, "lab", world.kept, said.append)
    assert [entry["Key"] for entry in s3.list_objects_v2(Bucket=BUCKET, Prefix="clusters/")["Contents"]] == [
        agent_key("lab-2")
    ]
    assert said == [f"done     removed s3://{BUCKET}/clusters/lab/, 2 objects"]
    assert remove_state(s3, BUCKET, "lab", world.kept, said.append), "again is the same"


def test_what_may_not_be_removed_is_left_and_told(world: World) -> None:
    """With the policy of an older version."""
    said: list[str] = []
    s3 = world.cloud.client("s3")
    s3.put_object(Bucket=BUCKET, Key=agent_key("lab"), Body=b"{}")

    def deny(**_: object) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied"}}, "DeleteObjects")

    s3.meta.events.register("before-call.s3.DeleteObjects", deny)
    try:
        assert not remove_state(s3, BUCKET, "lab", world.kept, said.append)
    finally:
        s3.meta.events.unregister("before-call.s3.DeleteObjects", deny)
    assert (said[0].startswith("LEFT"), f"aws s3 rm --recursive s3://{BUCKET}/clusters/lab/" in said[0]) == (True, True)
