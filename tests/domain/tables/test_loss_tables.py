"""A bad loss: one row per phase and observation; each negative row is one fact away from its positive."""

# ruff: noqa: E501 - a table is read by its rows

from __future__ import annotations

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.domain.model.action import RequestCheckpoint, ResubmitJob, action_name
from chalicelib.domain.model.evidence import LossEpisode, Need, Onset, Stretch, is_forensic
from chalicelib.domain.model.incident import Incident, Phase, SkipWindow
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.domain.model.observation import AttemptStatus as S
from chalicelib.domain.model.observation import AttemptView, CheckpointView, Observation, ReplyView
from chalicelib.domain.model.signal import Signal
from chalicelib.domain.model.signal import SignalKind as K
from chalicelib.domain.policy.document import DEFAULT_POLICY, Policy
from chalicelib.domain.policy.playbooks import Deadline, Response
from rekindle.protocol.signals import FaultClass as F
from tests.domain.looks import MINUTE, NOW, UNSEEN, a_try, checkpoint, incident, look, seen, signal, view, with_row
from tests.domain.policies import changed

P = DEFAULT_POLICY
LONG = timedelta(hours=7)
W, V = Phase.WATCHING, Phase.VERIFYING
SPIKE = F.LOSS_SPIKE
ONSET = 1000


def spiking(judged: int | None, health: str = "spiking", **more: Any) -> AttemptView:
    """The attempt with a spike since step 1000, its loss judged up to `judged`."""
    step = more.pop("step", judged)
    base = {"loss_state": "finite", "loss_health": health, "onset_step": ONSET, "judged_step": judged}
    return view(step=step, **(base | more))


def told(step: int = 1002, attempt: str = "lm", fault: F = SPIKE, **evidence: Any) -> Signal:
    kind = K.DIVERGENCE if fault is F.DIVERGENCE else K.LOSS_SPIKE
    return signal(fault, kind=kind, attempt=attempt, evidence={"step": step, "onset_step": ONSET, **evidence})


def recovered(healed: int, attempt: str = "lm") -> Signal:
    evidence = {"step": healed, "onset_step": ONSET, "healed_step": healed}
    return signal(None, kind=K.LOSS_RECOVERED, attempt=attempt, evidence=evidence)


def episode(attempt: str = "lm", **more: Any) -> LossEpisode:
    base: dict[str, Any] = {"attempt": attempt, "fault": SPIKE, "since": NOW - MINUTE}
    return LossEpisode(**(base | {"onset_step": Known(ONSET), "reported_step": Known(1002)} | more))


def spike(phase: Phase = W, fault: F = SPIKE, **more: Any) -> Incident:
    """An Incident about the spike, one minute old."""
    base = {"episode": episode(), "signals": (told(),), "fault_rule": "signal.loss_spike"}
    return incident(phase, fault, **(base | more))


def saves(*steps: int, **more: Any) -> dict[str, Known[tuple[CheckpointView, ...]]]:
    return {"checkpoints": Known(tuple(checkpoint(step, **more) for step in sorted(steps, reverse=True)))}


OLD = saves(800, 900, 950, 1010)
YOUNG = saves(901, 950, 1010)
NONE = saves()
LOOKING = {"needs": (Need.CHECKPOINTS,), "needs_since": NOW - MINUTE}
STOP_IT = changed(P, loss={"stop_without_resume_point": True})
NO_FORENSICS = with_row(SPIKE, deadline=Deadline.NONE)
SHADOW = dataclasses.replace(P, shadow=True)
THREE = tuple(Onset(attempt=f"lm-{n}", fault=SPIKE, step=Known(ONSET)) for n in range(3))


def forensic(outcome: str | None = None, **more: Any) -> dict[str, Any]:
    """What the Incident holds once a forensic checkpoint was asked for."""
    case = incident(Phase.CHECKPOINTING)
    assert case.halt.ask is not None
    ask = dataclasses.replace(case.halt.ask, request_id="inc-lm-1-f1", outcome=outcome, **more)
    return LOOKING | {"ask": ask, "onset_attempt": "lm", "onset_step": Known(ONSET), "onset_fault": SPIKE}


def answer(outcome: str = "saved") -> Known[ReplyView]:
    return Known(ReplyView(request_id="inc-lm-1-f1", outcome=outcome, step=1040, why=""))


def again(judged: int, health: str = "spiking", **more: Any) -> AttemptView:
    """The new attempt, bad since step 1180."""
    return spiking(judged, health, **({"name": "lm-r2", "onset_step": 1180} | more))


TRIED: dict[str, Any] = {
    "tries": (a_try(resume_step=Known(900)),),
    "rollbacks": 1,
    "onsets": (Onset(attempt="lm", fault=SPIKE, step=Known(ONSET)),),
    "skips": (SkipWindow(from_step=990, to_step=1190),),
    "verify_to": Known(1219),
    "target_step": Known(ONSET),
    "episode": None,
    "signals": (),
    "attempt": "lm-r2",
}
AGAIN = TRIED | {"episode": episode("lm-r2", onset_step=Known(1180), reported_step=Known(1181))}

Row = tuple[str, Incident, Observation, Policy, str, Phase, tuple[str, ...]]
LOSS_TABLE: list[Row] = [
    # --- watch first
    ("a spike is watched", incident(), seen(spiking(1003), new_signals=(told(),)), P, "spike.watching", W, ()),
    ("a spiking beat is enough", incident(), seen(spiking(1003)), P, "spike.watching", W, ()),
    ("a beat that watches is not", incident(), seen(spiking(1003, "watch", onset_step=None)), P, "playbook.tell", Phase.HOLDING, ("Notify",)),
    ("a held Incident can begin to watch", incident(Phase.HOLDING), seen(spiking(1003)), P, "spike.watching", W, ()),
    ("also in shadow mode", incident(), seen(spiking(1003), new_signals=(told(),)), SHADOW, "spike.watching", W, ()),
    ("it is still young", spike(), seen(spiking(1030)), P, "spike.watching", W, ()),
    ("the last step of its time", spike(), seen(spiking(1030)), P, "spike.watching", W, ()),
    ("one step later it lasts", spike(), seen(spiking(1031)), P, "rollback.looking", W, ()),
    ("no longer bad, not called over", spike(), seen(spiking(1090, "watch")), P, "spike.watching", W, ()),
    ("steps without a later verdict", spike(episode=episode(reported_step=Known(1100))), seen(spiking(1100, step=1199)), P, "spike.watching", W, ()),
    ("the next verdict of a job that logs every 100 steps", spike(episode=episode(reported_step=Known(1100))), seen(spiking(1200)), P, "rollback.looking", W, ()),
    ("a monitor that names no judged step", spike(), seen(spiking(None, step=1031)), P, "rollback.looking", W, ()),
    ("healed, says the beat", spike(), seen(spiking(1031, "ok", healed_step=1025)), P, "spike.healed", Phase.RECOVERED, ("Notify",)),
    ("healed late is healed", spike(), seen(spiking(1300, "ok", healed_step=1300)), P, "spike.healed", Phase.RECOVERED, ("Notify",)),
    ("healed, says a Signal, where no beat speaks", spike(), seen(view(step=1031), new_signals=(recovered(1025),)), P, "spike.healed", Phase.RECOVERED, ("Notify",)),
    ("healed, says a late Signal, but the beat relapsed", spike(), seen(spiking(1020), new_signals=(recovered(1010),)), P, "spike.watching", W, ()),
    ("healed, says a Signal that is newer than the beat", spike(), seen(spiking(1020), new_signals=(recovered(1025),)), P, "spike.healed", Phase.RECOVERED, ("Notify",)),
    ("the beat is older than the word", incident(), seen(spiking(990, "ok", onset_step=None), new_signals=(told(),)), P, "spike.watching", W, ()),
    ("an older spike healed, not this one", spike(), seen(spiking(1003, "ok", onset_step=400, healed_step=420)), P, "spike.unseen", W, ()),
    ("healed at the first observation", incident(), seen(spiking(1031, "ok", healed_step=1025), new_signals=(told(),)), P, "spike.healed", Phase.RECOVERED, ("Notify",)),
    ("healed, where the user wants to be told", incident(Phase.HOLDING, SPIKE), seen(spiking(1031, "ok", healed_step=1025), new_signals=(told(),)), with_row(SPIKE, response=Response.TELL), "spike.healed", Phase.RECOVERED, ("Notify",)),
    ("no judgement: neither healed nor bad", spike(), seen(view(step=1090)), P, "spike.unseen", W, ()),
    ("no judgement at the first look", incident(), seen(view(step=1090), new_signals=(told(),)), P, "spike.unseen", W, ()),
    ("no judgement for long is told", spike(episode=episode(unseen_since=NOW - LONG)), seen(view(step=1090)), P, "spike.unseen_limit", Phase.STOPPED, ("Notify",)),
    ("well, but nothing says that this was over", spike(episode=episode(unseen_since=NOW - LONG)), seen(spiking(1090, "ok", onset_step=None)), P, "spike.unseen_limit", Phase.STOPPED, ("Notify",)),
    ("bad again after long silence", spike(episode=episode(unseen_since=NOW - LONG)), seen(spiking(1020)), P, "spike.watching", W, ()),
    ("an unreadable run is waited for", spike(), seen(UNSEEN), P, "open.unseen", W, ()),
    ("young and standing still", spike(watch_at=NOW - LONG, watch_step=Known(1010)), seen(spiking(1010)), P, "spike.undecided", Phase.HANDED_OVER, ("Notify",)),
    ("a spike that only an alarm told", incident(signals=(signal(SPIKE, kind=K.ALARM, attempt=None, step=None),)), seen(view(step=None)), P, "spike.unseen", W, ()),
    ("a hang outranks the spike", spike(), seen(spiking(1010), new_signals=(signal(F.HANG, step=1010),)), P, "playbook.checkpoint", Phase.CHECKPOINTING, ("RequestCheckpoint",)),
    ("a NaN outranks the spike", spike(), seen(spiking(1010, loss_state="nan"), **OLD), P, "playbook.roll_back", Phase.STOPPING, ("StopJob",)),
    ("a crash outranks the spike", spike(), seen(spiking(1010, status=S.FAILED)), P, "resubmit.prepare", Phase.RESUBMITTING, ()),
    ("SageMaker's own repair outranks the watch", spike(), seen(spiking(1010, status=S.REPAIRING)), P, "defer.platform_repair", Phase.HOLDING, ()),
    ("a resubmit order outranks the watch", spike(), seen(spiking(1010), new_signals=(signal(None, kind=K.ORDER_RESUBMIT, step=None),)), P, "playbook.checkpoint", Phase.CHECKPOINTING, ("RequestCheckpoint",)),
    ("completed", spike(), seen(view(S.COMPLETED)), P, "open.completed", Phase.STOPPED, ("Notify",)),
    # --- then act, if there is a place to go
    ("it lasts, and it can go back", spike(**LOOKING), seen(spiking(1031), **OLD), P, "rollback.forensics", Phase.CHECKPOINTING, ("RequestCheckpoint",)),
    ("without forensics it is stopped at once", spike(**LOOKING), seen(spiking(1031), **OLD), NO_FORENSICS, "spike.lasts", Phase.STOPPING, ("StopJob",)),
    ("checkpoints that are all too young", spike(**LOOKING), seen(spiking(1031), **YOUNG), P, "rollback.no_place", Phase.HANDED_OVER, ("Notify",)),
    ("and the user wants it stopped", spike(**LOOKING), seen(spiking(1031), **YOUNG), STOP_IT, "rollback.no_place", Phase.STOPPING, ("StopJob",)),
    ("no checkpoint at all", spike(**LOOKING), seen(spiking(1031), **NONE), P, "rollback.no_place", Phase.HANDED_OVER, ("Notify",)),
    ("old ones that are damaged", spike(**LOOKING), seen(spiking(1031), **saves(800, problems=("torn",))), P, "rollback.no_place", Phase.HANDED_OVER, ("Notify",)),
    ("checkpoints that cannot be read now", spike(**LOOKING), seen(spiking(1031), checkpoints=Unknown("throttled")), P, "rollback.unseen", W, ()),
    ("nor for long", spike(**(LOOKING | {"needs_since": NOW - LONG})), seen(spiking(1031), checkpoints=Unknown("throttled")), P, "rollback.unseen_limit", Phase.HANDED_OVER, ("Notify",)),
    ("healed while its checkpoints were read", spike(**LOOKING), seen(spiking(1031, "ok", healed_step=1031), **OLD), P, "spike.healed", Phase.RECOVERED, ("Notify",)),
    ("shadow mode says what it would do", spike(**LOOKING), seen(spiking(1031), **OLD), SHADOW, "guard.shadow", Phase.HANDED_OVER, ("Notify",)),
    ("three roll-backs are enough", spike(rollbacks=3, onsets=THREE, **LOOKING), seen(spiking(1031), **OLD), P, "budget.rollbacks", Phase.HANDED_OVER, ("Notify",)),
    ("the third is still made", spike(rollbacks=2, onsets=THREE[:2], **LOOKING), seen(spiking(1031), **saves(700)), NO_FORENSICS, "spike.lasts", Phase.STOPPING, ("StopJob",)),
    ("but goes further back", spike(rollbacks=2, onsets=THREE[:2], **LOOKING), seen(spiking(1031), **OLD), NO_FORENSICS, "rollback.no_place", Phase.HANDED_OVER, ("Notify",)),
    # --- a divergence is a person's, unless the policy says otherwise
    ("a divergence is saved for people", incident(), seen(spiking(1103, "diverging")), P, "playbook.checkpoint", Phase.CHECKPOINTING, ("RequestCheckpoint", "Notify")),
    ("a spike turns into a divergence", spike(), seen(spiking(1103, "diverging")), P, "playbook.checkpoint", Phase.CHECKPOINTING, ("RequestCheckpoint", "Notify")),
    ("the user wants divergences rolled back", incident(), seen(spiking(1103, "diverging")), with_row(F.DIVERGENCE, response=Response.ROLL_BACK), "rollback.looking", Phase.OPEN, ()),
    ("and it is", incident(**LOOKING), seen(spiking(1103, "diverging"), **OLD), with_row(F.DIVERGENCE, response=Response.ROLL_BACK, deadline=Deadline.NONE), "playbook.roll_back", Phase.STOPPING, ("StopJob",)),
    ("a divergence that healed", incident(), seen(spiking(1203, "ok", healed_step=1200), new_signals=(told(fault=F.DIVERGENCE),)), P, "spike.healed", Phase.RECOVERED, ("Notify",)),
    # --- while the forensic checkpoint is made
    ("saved for forensics, then stopped", spike(Phase.CHECKPOINTING, **forensic()), seen(spiking(1040), reply=answer(), **OLD), P, "checkpoint.saved", Phase.STOPPING, ("StopJob",)),
    ("not saved, then stopped all the same", spike(Phase.CHECKPOINTING, **forensic()), seen(spiking(1040), reply=answer("cannot"), **OLD), P, "checkpoint.cannot", Phase.STOPPING, ("StopJob",)),
    ("still waiting", spike(Phase.CHECKPOINTING, **forensic()), seen(spiking(1040), **OLD), P, "checkpoint.waiting", Phase.CHECKPOINTING, ()),
    ("called a divergence meanwhile: decided is decided", spike(Phase.CHECKPOINTING, **forensic()), seen(spiking(1103, "diverging"), reply=answer(), **OLD), P, "checkpoint.saved", Phase.STOPPING, ("StopJob",)),
    ("healed meanwhile", spike(Phase.CHECKPOINTING, **forensic()), seen(spiking(1045, "ok", healed_step=1042), **OLD), P, "spike.healed", Phase.RECOVERED, ("Notify",)),
    ("NaN meanwhile", spike(Phase.CHECKPOINTING, **forensic()), seen(spiking(1040, loss_state="nan"), **OLD), P, "checkpoint.poisoned", Phase.STOPPING, ("StopJob",)),
    ("saved, but the old ones are gone", spike(Phase.CHECKPOINTING, **forensic("saved")), seen(spiking(1040), **YOUNG), P, "rollback.no_place", Phase.HANDED_OVER, ("Notify",)),
    ("saved, and the checkpoints cannot be read", spike(Phase.CHECKPOINTING, **forensic("saved")), seen(spiking(1040), checkpoints=UNSEEN), P, "rollback.unseen", Phase.CHECKPOINTING, ()),
    ("it dies of itself", spike(Phase.CHECKPOINTING, **forensic()), seen(view(S.FAILED, step=1040), **OLD), P, "resubmit.now", Phase.RESUBMITTING, ("ResubmitJob",)),
    # --- stopped, and started from before it
    ("it stops", spike(Phase.STOPPING, **forensic("saved")), seen(view(S.STOPPED, step=1040), **OLD), P, "resubmit.now", Phase.RESUBMITTING, ("ResubmitJob",)),
    ("it is submitted", spike(Phase.RESUBMITTING, **(TRIED | forensic("saved"))), seen(view(S.STOPPED, step=1040), next_number=3), P, "resubmit.started", V, ()),
    # --- a non-finite loss looks for a place first, too
    ("NaN: a place is looked for", incident(), seen(view(loss_state="nan")), P, "rollback.looking", Phase.OPEN, ()),
    ("NaN: no place, and it is left to a person", incident(**LOOKING), seen(view(loss_state="nan"), **saves(150)), P, "rollback.no_place", Phase.HANDED_OVER, ("Notify",)),
    ("NaN: no place, and it is stopped", incident(**LOOKING), seen(view(loss_state="nan"), **saves(150)), STOP_IT, "rollback.no_place", Phase.STOPPING, ("StopJob",)),
    ("NaN: a forensic checkpoint is no place", incident(**LOOKING), seen(view(loss_state="nan"), **saves(50, kind="forensic")), P, "rollback.no_place", Phase.HANDED_OVER, ("Notify",)),
    # --- watching the new attempt past the data that were left out
    ("past the target, not past the data", spike(V, **TRIED), seen(again(1150, "ok", onset_step=None)), P, "verify.waiting", V, ()),
    ("past the data and well", spike(V, **TRIED), seen(again(1220, "ok", onset_step=None)), P, "verify.passed", Phase.RECOVERED, ("Notify",)),
    ("past the data, and nothing tells how it is", spike(V, **TRIED), seen(again(1220, "unknown", onset_step=None)), P, "verify.loss_unseen", V, ()),
    ("nor for long", spike(V, **TRIED, seen_as="lm-r2:running", seen_since=NOW - LONG), seen(again(1220, "unknown", onset_step=None)), P, "verify.loss_unseen_limit", Phase.HANDED_OVER, ("Notify",)),
    ("bad again: it too may heal", spike(V, **TRIED), seen(again(1182)), P, "verify.spike", V, ()),
    ("past the data, but bad again", spike(V, **AGAIN), seen(again(1205, step=1230)), P, "verify.spike", V, ()),
    ("it healed, and is not past the data", spike(V, **AGAIN), seen(again(1200, "ok", healed_step=1190)), P, "verify.waiting", V, ()),
    ("it healed, and is past the data", spike(V, **AGAIN), seen(again(1240, "ok", healed_step=1190)), P, "verify.passed", Phase.RECOVERED, ("Notify",)),
    ("bad again, and it lasts", spike(V, **AGAIN), seen(again(1211)), P, "rollback.looking", V, ()),
    ("rolled back further", spike(V, **AGAIN, **LOOKING), seen(again(1211), **saves(850)), NO_FORENSICS, "verify.roll_back", Phase.STOPPING, ("StopJob",)),
    ("rolled back further, with forensics", spike(V, **AGAIN, **LOOKING), seen(again(1211), **saves(850)), P, "rollback.forensics", Phase.CHECKPOINTING, ("RequestCheckpoint",)),
    ("as far as the first time is not far enough", spike(V, **AGAIN, **LOOKING), seen(again(1211), **saves(900)), NO_FORENSICS, "rollback.no_place", Phase.HANDED_OVER, ("Notify",)),
    ("bad again, and standing still", spike(V, **AGAIN, watch_at=NOW - LONG, watch_step=Known(1190), evidence_since=NOW - MINUTE), seen(again(1190)), P, "verify.silent", Phase.STOPPING, ("StopJob",)),
    ("the old attempt's spike is not the new one's", spike(V, **(TRIED | {"signals": (told(),)})), seen(again(1150, "ok", onset_step=None)), P, "verify.waiting", V, ()),
    ("a divergence of the new attempt", spike(V, **TRIED), seen(again(1300, "diverging")), P, "playbook.checkpoint", Phase.CHECKPOINTING, ("RequestCheckpoint", "Notify")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "what", "policy", "rule", "phase", "actions"),
    [row[1:] for row in LOSS_TABLE],
    ids=[f"{row[5]}: {row[0]}" for row in LOSS_TABLE],
)
def test_the_loss_table_says(
    case: Incident, what: Observation, policy: Policy, rule: str, phase: Phase, actions: tuple[str, ...]
) -> None:
    decision = look(case, what, policy)
    done = tuple(action_name(action) for action in decision.actions)
    assert (decision.rule, decision.incident.phase, done) == (rule, phase, actions), decision.reason


# --- what is asked, marked and left out -----------------------------------------------------------------------------


def test_a_checkpoint_of_a_bad_stretch_is_asked_for_under_a_forensic_id() -> None:
    decision = look(spike(**LOOKING), seen(spiking(1031), **OLD))
    (ask,) = decision.actions
    assert isinstance(ask, RequestCheckpoint)
    assert is_forensic(ask.request_id)
    assert decision.incident.loss.stretches == (Stretch(attempt="lm", from_step=ONSET),)
    assert not is_forensic("inc-lm-1-c1")
    assert not is_forensic(None)


def test_a_rise_that_is_seen_only_as_its_run_is_submitted_again_forbids_its_checkpoints() -> None:
    case = incident(Phase.RESUBMITTING, F.SOFTWARE_CRASH)
    after = look(case, seen(spiking(1031, status=S.FAILED), **OLD)).incident
    assert after.loss.stretches == (Stretch(attempt="lm", from_step=ONSET),)
    assert after.fault is F.SOFTWARE_CRASH
    alive = look(case, seen(spiking(1031), **OLD)).incident
    assert not alive.loss.stretches


def test_a_healed_spike_forbids_its_own_checkpoints_only() -> None:
    healed = look(spike(), seen(spiking(1040, "ok", healed_step=1025))).incident
    assert healed.loss.stretches == (Stretch(attempt="lm", from_step=ONSET, to_step=1025),)
    assert not healed.is_poisoned
    (later,) = healed.loss.stretches
    held = [step for step in (999, 1000, 1024, 1025) if later.holds("lm", step, None)]
    assert held == [1000, 1024]
    assert not later.holds("lm-r2", 1010, None)


@pytest.mark.parametrize(
    ("of", "saved_by", "is_held"), [(None, 3, True), (1, None, True), (1, 0, True), (1, 1, True), (1, 2, False)]
)
def test_what_a_later_life_has_saved_is_not_poisoned_with_an_earlier_one(
    of: int | None, saved_by: int | None, is_held: bool
) -> None:
    """None: not known, which may be any."""
    assert Stretch(attempt="lm", from_step=5, life=of).holds("lm", 7, saved_by) is is_held


def test_a_spike_that_healed_after_it_was_marked_leaves_the_run_clean() -> None:
    case = spike(Phase.CHECKPOINTING, stretches=(Stretch(attempt="lm", from_step=ONSET),), **forensic())
    healed = look(case, seen(spiking(1045, "ok", healed_step=1042))).incident
    assert (healed.loss.stretches, healed.loss.onset_attempt) == (
        (Stretch(attempt="lm", from_step=ONSET, to_step=1042),),
        None,
    )


def test_an_open_stretch_of_an_earlier_incident_ends_where_the_run_says_it_is_well() -> None:
    left_open = incident(fault=F.HANG, stretches=(Stretch(attempt="lm", from_step=ONSET),))
    still = look(left_open, seen(spiking(1500, "ok", onset_step=None)))
    assert still.incident.loss.stretches == left_open.loss.stretches
    over = look(left_open, seen(spiking(1500, "ok", healed_step=1100)))
    assert over.incident.loss.stretches == (Stretch(attempt="lm", from_step=ONSET, to_step=1100),)


def test_a_run_that_dies_in_a_spike_is_not_resumed_from_what_it_saved_in_it() -> None:
    died = look(spike(), seen(spiking(1025, status=S.FAILED), **saves(990, 1010)))
    (sent,) = (action for action in died.actions if isinstance(action, ResubmitJob))
    assert sent.resume_step == Known(990)


def resubmitted(case: Incident, points: dict[str, Any], name: str = "lm") -> ResubmitJob:
    stopped = look(case, seen(view(S.STOPPED, name=name, step=1040), **points))
    (sent,) = (action for action in stopped.actions if isinstance(action, ResubmitJob))
    return sent


def stopping(**more: Any) -> Incident:
    base = {"onset_attempt": "lm", "onset_step": Known(ONSET), "onset_fault": SPIKE, "signals": ()}
    return spike(Phase.STOPPING, **(base | more))


def test_the_first_roll_back_goes_back_100_steps_and_leaves_out_200_batches_from_before_the_onset() -> None:
    sent = resubmitted(stopping(), OLD)
    assert sent.resume_step == Known(900)
    assert sent.skips == (SkipWindow(from_step=990, to_step=1190),)
    assert sent.goes_back


@pytest.mark.parametrize(
    ("before", "onset", "resume_at_most", "window"),
    [
        (0, 1000, 900, (990, 1190)),
        (1, 1000, 850, (985, 1285)),
        (2, 1000, 775, (978, 1428)),
        (1, 1200, 850, (985, 1485)),  # bad again beyond the window: it reaches as far beyond the new onset
        (1, 960, 810, (945, 1245)),  # bad again before the window: everything counts from there
    ],
)
def test_each_further_roll_back_goes_further_back_and_leaves_out_more(
    before: int, onset: int, resume_at_most: int, window: tuple[int, int]
) -> None:
    first = tuple(Onset(attempt=f"lm-{n}", fault=SPIKE, step=Known(ONSET)) for n in range(before))
    case = stopping(rollbacks=before, onsets=first, onset_step=Known(onset), target_step=Known(onset))
    sent = resubmitted(case, saves(*range(5, 1300, 5)))
    assert (sent.skips[0].from_step, sent.skips[0].to_step) == window
    assert isinstance(sent.resume_step, Known)
    assert resume_at_most - 5 < sent.resume_step.value <= resume_at_most


def test_what_is_watched_past_is_the_window_and_the_time_to_heal() -> None:
    prepared = look(stopping(), seen(view(S.STOPPED, step=1040)))
    assert prepared.incident.loss.verify_to == Known(1190 - 1 + P.loss.spike_heal_steps)


def test_a_spike_whose_onset_nobody_knows_is_not_resumed_from_its_own_checkpoints() -> None:
    unknown = {"episode": episode(onset_step=Unknown("x"), reported_step=Unknown("x")), **LOOKING}
    case = spike(Phase.STOPPING, onset_attempt="lm", onset_step=Unknown("x"), onset_fault=SPIKE, **unknown)
    what = seen(view(S.STOPPED, step=1040), **saves(500))
    stopped = look(case, what)
    assert stopped.rule == "resubmit.prepare"  # whether it was started by hand is looked at before it is given up
    assert look(stopped.incident, what).rule == "resume.none_fit"


def test_the_whole_story_is_told_when_roll_backs_did_not_cure_it() -> None:
    tries = tuple(a_try(n, ended=True, last_step=Known(1000 + n)) for n in (2, 3, 4))
    onsets = tuple(Onset(attempt=name, fault=SPIKE, step=Known(1000)) for name in ("lm", "lm-r2", "lm-r3"))
    case = spike(
        V,
        tries=(*tries[:2], dataclasses.replace(tries[2], ended=False)),
        attempt="lm-r4",
        onsets=onsets,
        rollbacks=3,
        episode=episode("lm-r4"),
        skips=(SkipWindow(from_step=978, to_step=1428),),
        signals=(),
        **LOOKING,
    )
    decision = look(case, seen(spiking(1100, name="lm-r4"), **saves(500)))
    assert decision.rule == "budget.rollbacks"
    for word in ("lm went bad", "lm-r2", "lm-r3", "lm-r4", "steps 978-1427", "left running"):
        assert word in decision.reason
