"""Real jobs on a real Slurm, harmed in every way: each runs again on good nodes, past where it was, bit for bit.

Each test ends by comparing the exact loss of every step of every start with a run that nothing happened to, and what
the service ordered with what Slurm itself wrote down: nothing was done twice.
"""

from __future__ import annotations

import shutil
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from rekindle.protocol.cluster.documents import EndedBy, SlurmState
from rekindle.protocol.cluster.names import first_attempt
from rekindle.protocol.cluster.orders import Barred, Outcome, Verb
from tests.slurm.lab.processes import is_alive, is_stopped
from tests.slurm.stage import CLUSTER, Stage, raised

pytestmark = [pytest.mark.process, pytest.mark.filterwarnings("ignore:IAMAuthorizer")]
STARTS = (Verb.REQUEUE, Verb.SUBMIT)


def end_well(stage: Stage, *, without: tuple[str, ...] = ()) -> None:
    """It runs on good nodes, past where it was; it is let end in order; everything was done once."""
    stage.wait_moving()
    assert not set(stage.lab.nodes_of(stage.doc().slurm_job)) & set(without)
    stage.assert_as_undisturbed(stage.finish())
    stage.assert_done_once()


@pytest.mark.versions
@pytest.mark.outermost
def test_a_node_that_dies_with_its_steps_is_left_and_repaired_while_the_job_goes_on_elsewhere(tmp_path: Path) -> None:
    with raised(tmp_path) as stage:
        stage.wait_protected()
        assert [attempt.name for attempt in stage.attempts()] == [stage.job_id]
        lost = stage.lab.nodes_of(stage.job)[1]
        stage.lab.kill_node(lost)
        stage.wait(lambda: len(stage.starts()) > 1, "the second start")
        stage.wait_moving()
        assert lost not in stage.lab.nodes_of(stage.doc().slurm_job)
        stage.wait_repaired(lost)
        end_well(stage)


def test_a_rank_that_outlives_its_slurmd_is_fenced_and_what_it_saves_is_not_used(tmp_path: Path) -> None:
    with raised(tmp_path, policy={"nodes": {"repair": "tell"}}) as stage:
        stage.wait_protected()
        stage.say("late")
        lost = stage.lab.nodes_of(stage.job)[0]
        (zombie,) = stage.lab.rank_pids(stage.job, 0)
        stage.lab.kill_slurmd(lost)
        stage.wait(lambda: len(stage.starts()) > 1, "the second start")
        stage.wait(lambda: len(stage.attempts()) > 1, "the second attempt to be registered")
        stage.wait(lambda: stage.fence() == stage.attempts()[-1].name, "the first attempt to be fenced")
        assert is_alive(zombie)
        (stage.folder / "late").unlink()  # now it saves, beside its successor
        haunted = stage.wait(lambda: [row for row in stage.trace("zombies") if "saved" in row], "the zombie to save")
        newer = [
            manifest
            for manifest in stage.manifests()
            if manifest["attempt"] == stage.job_id and manifest["root"].endswith("-late")
        ]
        assert newer == []  # saved, but never sealed
        assert haunted[0]["step"] >= stage.starts()[1].resumed  # it would have been the newest
        stage.say("crash-1")
        stage.wait(lambda: len(stage.starts()) > 2, "the third start")
        assert not (stage.starts()[2].uri or "").endswith("-late")
        end_well(stage, without=(lost,))


def test_a_frozen_rank_is_ended_and_the_job_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    with raised(tmp_path, environment={"REKINDLE_STALL_FLOOR_S": "20"}) as stage:
        stage.wait_protected()
        frozen = stage.lab.freeze_rank(stage.job, 1)
        stage.wait_recovered("hang")
        assert not any(is_alive(pid) and is_stopped(pid) for pid in frozen)
        end_well(stage)


def test_a_step_that_crashes_in_user_code_runs_again(tmp_path: Path) -> None:
    with raised(tmp_path) as stage:
        stage.wait_protected()
        stage.say("crash-1")
        incident = stage.wait_recovered("software_crash")
        assert len(incident.resubmission.tries) == 1
        assert stage.doc(stage.job_id).state in (SlurmState.FAILED, SlurmState.REQUEUED)
        assert [order.verb for order in stage.orders() if order.verb in STARTS] == [Verb.REQUEUE]
        end_well(stage)


def test_ours_saves_and_makes_way_for_the_start_that_the_runs_user_submits_later(tmp_path: Path) -> None:
    with raised(tmp_path, workers=5) as stage:
        stage.wait_protected()
        stage.say("crash-1")
        stage.wait_recovered("software_crash")
        ours, theirs = stage.attempts()[-1].name, stage.lab.submit(stage.folder / "job.sbatch")
        name = first_attempt(CLUSTER, theirs).name
        stage.wait(lambda: stage.attempts()[-1].name == name, "theirs to be taken for the Job's new attempt")
        assert stage.doc(ours).state not in (SlurmState.RUNNING, SlurmState.PENDING)
        assert [reply["outcome"] for reply in stage.messages("replies")] == ["saved"]
        stage.wait(lambda: stage.fence() == name, "theirs to be the one that may save")
        stage.wait_moving()
        assert stage.starts()[-1].name == f"{theirs}.0"
        assert [order.verb for order in stage.orders() if order.verb in STARTS] == [Verb.REQUEUE]


def test_a_mailbox_on_a_shared_path_is_as_good_also_for_a_script_with_auto_resume(tmp_path: Path) -> None:
    has_plugin = shutil.which("gcc") is not None  # HyperPod's own is stood in for by one that is built here
    srun = ["--auto-resume=1"] if has_plugin else []
    with raised(tmp_path, shared=True, with_auto_resume=has_plugin, srun=srun) as stage:
        stage.wait_protected()
        assert stage.doc().has_auto_resume is has_plugin
        stage.say("crash-0")
        stage.wait_recovered("software_crash")
        end_well(stage)


def test_a_node_that_hyperpod_reports_as_bad_is_left_for_a_spare_replaced_and_given_back(tmp_path: Path) -> None:
    with raised(tmp_path) as stage:
        stage.wait_protected()
        bad = stage.lab.nodes_of(stage.job)[1]
        before = stage.pod.instance_of(bad)
        stage.cloud.clusters.report_health(
            CLUSTER, before, fault="NvidiaGpuXidErrorPendingReplacement", action="Replace"
        )
        stage.wait_recovered("node_hardware")
        nodes = stage.lab.nodes_of(stage.doc().slurm_job)
        assert before not in {stage.pod.instance_of(node) for node in nodes}  # a spare, or the one that replaced it
        saved = stage.messages("replies")[0]  # it was asked to save before it was stopped
        assert saved["outcome"] == "saved"
        assert stage.starts()[-1].resumed >= saved["step"]
        stage.wait_repaired(bad)
        assert stage.pod.instance_of(bad) != before
        end_well(stage)


def test_a_job_that_its_user_cancels_is_left_alone(tmp_path: Path) -> None:
    with raised(tmp_path) as stage:
        stage.wait_protected()
        stage.lab.run("scancel", str(stage.job))
        stage.wait(lambda: stage.doc().state is SlurmState.CANCELLED, "the agent to see it")
        stage.wait(lambda: stage.doc().ended_by is EndedBy.USER, "accounting to tell who cancelled it")
        stage.wait_settled()
        assert [attempt.name for attempt in stage.attempts()] == [stage.job_id]
        assert [order for order in stage.orders() if order.verb in STARTS] == []
        assert not any(incident.resubmission.tries for incident in stage.incidents())
        assert [record.state for record in stage.lab.records(stage.job)] == ["CANCELLED"]


def test_a_recovery_outlasts_a_restart_of_slurmctld(tmp_path: Path) -> None:
    with raised(tmp_path) as stage:
        stage.wait_protected()
        stage.shim("scontrol", holds_up("requeuehold", stage.folder))
        stage.say("crash-1")
        stage.wait(lambda: (stage.folder / "held-up").exists(), "the order to be carried out")
        stage.lab.stop_slurmctld()
        (stage.folder / "go-on").touch()  # the command meets nobody
        stage.wait(lambda: (stage.folder / "failed").exists(), "the command to fail")
        stage.lab.start_slurmctld()
        stage.wait_recovered("software_crash")
        end_well(stage)


def holds_up(verb: str, folder: Path) -> str:
    """A command of Slurm's that waits to be let go on, once, and notes that it failed."""
    return f"""
if [ "$1" = {verb} ] && [ ! -e "{folder}/held-up" ]; then
    touch "{folder}/held-up"
    until [ -e "{folder}/go-on" ]; do sleep 0.05; done
fi
"$real" "$@"
code=$?
if [ "$code" -ne 0 ] && [ -e "{folder}/held-up" ]; then touch "{folder}/failed"; fi
exit "$code"
"""


def kills_the_agent(verb: str, folder: Path) -> str:
    """A command of Slurm's after which, once, whoever ran it is killed: it can neither read its status nor answer."""
    return f"""
if [ "$1" = {verb} ] && [ ! -e "{folder}/killed" ]; then
    touch "{folder}/killed"
    "$real" "$@"
    code=$?
    kill -KILL "$PPID"
    exit "$code"
fi
exec "$real" "$@"
"""


@pytest.mark.parametrize("verb", ["requeuehold", "release"])
def test_an_agent_killed_between_a_command_and_its_answer_does_nothing_twice(tmp_path: Path, verb: str) -> None:
    with raised(tmp_path) as stage:
        stage.wait_protected()
        stage.shim("scontrol", kills_the_agent(verb, stage.folder))
        stage.say("crash-1")
        stage.wait(lambda: stage.agent is not None and stage.agent.poll() is not None, "the agent to be killed")
        assert stage.agent is not None
        assert stage.agent.returncode == -signal.SIGKILL
        stage.start_agent()
        stage.wait_recovered("software_crash")
        end_well(stage)


def test_an_order_that_comes_twice_late_and_after_its_time_is_carried_out_once(tmp_path: Path) -> None:
    with raised(tmp_path) as stage:
        stage.wait_protected()
        stage.say("crash-1")
        stage.wait_recovered("software_crash")
        (start,) = [order for order in stage.orders() if order.verb in STARTS]
        before = stage.answers()
        # The same order twice more, late: about a start that has been over for long, for it has run since.
        stage.deliver(start)
        stage.deliver(start)
        # An order about the first start that nobody has given before: stale. And one that is past its time.
        stale = stage.forged(start, token="stale", verb=Verb.CANCEL)
        late = stage.forged(start, token="late", verb=Verb.CANCEL, expires_at=start.issued_at + timedelta(seconds=1))
        running = stage.doc()
        overdue = stage.forged(start, token="overdue", verb=Verb.CANCEL, attempt=running.attempt, is_overdue=True)
        for order in (stale, late, overdue):
            stage.deliver(order)
        stage.wait(lambda: {"stale", "late", "overdue"} <= set(stage.answers()), "the answers")
        answers = stage.answers()
        assert answers[start.token] == before[start.token]
        assert {answers[name].outcome for name in ("late", "overdue")} == {Outcome.REFUSED}
        assert answers["stale"].outcome in (Outcome.REFUSED, Outcome.ALREADY)
        assert stage.doc().state is SlurmState.RUNNING
        assert stage.doc().attempt == running.attempt
        end_well(stage)


@pytest.mark.versions
@pytest.mark.outermost
def test_a_job_that_slurm_may_not_requeue_is_submitted_again_once_also_by_an_agent_killed_after_sbatch(
    tmp_path: Path,
) -> None:
    with raised(tmp_path, sbatch=["--no-requeue"]) as stage:
        stage.wait_protected()
        stage.shim("sbatch", kills_the_agent("--parsable", stage.folder))
        stage.say("crash-1")
        stage.wait(lambda: stage.agent is not None and stage.agent.poll() is not None, "the agent to be killed")
        (copy,) = [job for job in stage.lab.run("squeue", "-h", "-o", "%A %r").stdout.splitlines() if "JobHeld" in job]
        stage.start_agent()
        stage.wait_recovered("software_crash")
        assert stage.doc().slurm_job == int(copy.split()[0])
        assert [order.verb for order in stage.orders() if order.verb in STARTS] == [Verb.SUBMIT]
        end_well(stage)


def test_a_job_that_would_come_back_as_another_one_is_not_started_and_the_difference_is_told(tmp_path: Path) -> None:
    """As a plug-in of the site's would change it, or an option that nobody can see."""
    with raised(tmp_path, sbatch=["--no-requeue"]) as stage:
        stage.wait_protected()
        stage.shim("sbatch", 'exec "$real" --nice=77 "$@"')
        stage.say("crash-1")
        told = stage.wait(
            lambda: [incident for incident in stage.incidents() if incident.phase == "handed_over"],
            "a person to be told",
        )
        assert [attempt.name for attempt in stage.attempts()] == [stage.job_id]
        (order,) = [order for order in stage.orders() if order.verb in STARTS]
        answer = stage.answers()[order.token]
        assert answer.outcome is Outcome.REFUSED
        assert "Nice was '0', and would be '77'" in answer.detail
        assert "Nice was '0'" in " ".join(line.text for line in stage.service.look.store.timeline(told[0].incident_id))
        assert len(stage.starts()) == 1
        assert [record.state for record in stage.lab.records() if record.job != stage.job] == ["CANCELLED"]


def test_what_the_head_nodes_file_bars_is_told_to_people_and_not_done(tmp_path: Path) -> None:
    with raised(tmp_path) as stage:
        stage.wait_protected()
        sent = stage.notices()
        stage.allow("[deny]\nverbs = requeue\nusers = root\n")
        stage.say("crash-1")
        told = stage.wait(
            lambda: [incident for incident in stage.incidents() if incident.phase == "handed_over"],
            "a person to be told",
        )
        answers = [answer for answer in stage.answers().values() if answer.verb in STARTS]
        assert {(answer.outcome, answer.barred) for answer in answers} == {(Outcome.REFUSED, Barred.NOT_ALLOWED_HERE)}
        timeline = stage.service.look.store.timeline(told[0].incident_id)
        signals = [signal for line in timeline for signal in line.facts.get("signals", ())]
        assert Barred.NOT_ALLOWED_HERE in [signal.get("barred") for signal in signals]
        assert "users = root is denied here" in timeline[-1].text
        stage.wait(lambda: "users = root is denied here" in sent(), "the notice")
        assert [record.state for record in stage.lab.records(stage.job)] == ["FAILED"]
        assert len(stage.starts()) == 1
