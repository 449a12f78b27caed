"""All ranks go on from where rank 0 does; where they cannot be told, a rank that went elsewhere is noticed."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from rekindle.monitor import Monitor
from rekindle.monitor.mail.slurm import LaunchInstructions
from rekindle.monitor.sharing import Share, shared
from rekindle.protocol.launch_orders import ENV_INCIDENT, ENV_RESUME_STEP, ENV_RESUME_URI, ResumePlan
from tests.monitor.boxes import PATIENCE_S, QUICK, ObservedBox, start_monitor


class Ring:
    """Ranks in threads of one process, and what they share at the start."""

    def __init__(self, world: int) -> None:
        self._world = world
        self._barrier = threading.Barrier(world, timeout=PATIENCE_S)
        self._values: dict[int, Any] = {}

    def _all(self, rank: int, value: Any) -> dict[int, Any]:
        self._values[rank] = value
        self._barrier.wait()
        found = dict(self._values)
        self._barrier.wait()
        return found

    def share(self, rank: int) -> Share:
        return lambda text: str(self._all(rank, text)[0])


def told(**env: str) -> LaunchInstructions:
    return LaunchInstructions(env={"RANK": "1", **env}, submitted={})


def at(step: int | None) -> ResumePlan:
    return ResumePlan(step=step, uri=None if step is None else f"/fsx/step-{step}")


def test_rank_zeros_word_holds_and_what_is_the_ranks_own_stays() -> None:
    said: list[str] = []
    first, plan, life = shared(
        told(REKINDLE_JOB_ID="j", REKINDLE_INCIDENT="inc-1"), at(40), lambda text: said.append(text) or text, 3
    )
    assert (plan, life, first.env["REKINDLE_INCIDENT"]) == (at(40), 3, "inc-1")
    second, plan, life = shared(told(REKINDLE_JOB_ID="other", REKINDLE_ATTEMPT="9"), at(None), lambda _: said[0], None)
    assert (plan, life) == (at(40), 3)
    assert second.env == {"RANK": "1", "REKINDLE_JOB_ID": "j", ENV_INCIDENT: "inc-1"}


def test_with_nobody_to_ask_and_with_a_broken_group_each_goes_by_its_own() -> None:
    def broken(_: str) -> str:
        raise RuntimeError("connection closed by peer")

    mine = told()
    for share in (
        None,
        broken,
        lambda _: "",
        lambda _: "not JSON",
        lambda _: '{"resume": {"REKINDLE_RESUME_STEP": "x"}}',
    ):
        assert shared(mine, at(3), share, None) == (mine, at(3), None)


def run(*bodies: Any) -> None:
    threads = [threading.Thread(target=body) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def train(
    tmp_path: Path, resumes: tuple[int | None, ...], *, shares: bool
) -> tuple[list[Monitor], list[list[int]], ObservedBox]:
    """A few steps on each rank, until each knows of the others; then rank 0's own save of a step."""
    ring, box = Ring(len(resumes)), ObservedBox(tmp_path / "mailbox")
    monitors: dict[int, Monitor] = {}
    saves: list[list[int]] = [[] for _ in resumes]
    has_saved = threading.Event()

    def rank_of(rank: int, step: int | None) -> None:
        env = {"REKINDLE_JOB_ID": "job", "TRAINING_JOB_NAME": "run-1"}
        if step is not None:
            env |= {ENV_RESUME_STEP: str(step), ENV_RESUME_URI: f"{tmp_path}/step-{step}"}

        def save(at_step: int, _: str) -> str:
            saves[rank].append(at_step)
            path = tmp_path / f"new-{at_step}"
            path.mkdir(exist_ok=True)
            (path / f"{rank}.bin").write_bytes(b"weights")
            return str(path)

        monitor = monitors[rank] = start_monitor(
            save=save,
            mailbox=box,
            rank=rank,
            world_size=len(resumes),
            share=ring.share(rank) if shares else None,
            config=QUICK,
            env=env,
        )
        monitor.step(1, loss=1.0)
        if rank == 0:
            is_apart = not shares and len(set(resumes)) > 1
            joined = [f"/m1/{other}.json" for other in range(len(resumes))]
            box.wait(lambda: all(any(key.endswith(end) for key in box.written) for end in joined))
            pause = threading.Event()
            for _ in range(int(PATIENCE_S / 0.01)):
                if not is_apart or "resumed_apart" in monitor.health():
                    break
                pause.wait(0.01)
            monitor.saved(save(1, "periodic"), 1)
            has_saved.set()
        assert has_saved.wait(PATIENCE_S)

    run(*(lambda rank=rank, step=step: rank_of(rank, step) for rank, step in enumerate(resumes)))
    return [monitors[rank] for rank in sorted(monitors)], saves, box


def test_ranks_that_share_resume_where_rank_zero_does_and_save(tmp_path: Path) -> None:
    monitors, _, box = train(tmp_path, (40, None), shares=True)
    assert [monitor.resume.step for monitor in monitors] == [40, 40]
    box.wait(lambda: any("/manifests/" in key for key in box.written))
    for one in monitors:
        assert "resumed_apart" not in one.health()
        one.finish(timeout_s=PATIENCE_S)


def test_ranks_that_resumed_apart_are_noticed(tmp_path: Path) -> None:
    monitors, _, box = train(tmp_path, (40, None), shares=False)
    assert [monitor.resume.step for monitor in monitors] == [40, None]
    assert (
        any("resumed_apart" in monitor.health() for monitor in monitors[1:]) or "resumed_apart" in monitors[0].health()
    )
    assert monitors[0].health()["save_failed"] == 1
    for one in monitors:
        one.finish(timeout_s=PATIENCE_S)
    assert not [key for key in box.written if "/manifests/" in key]
