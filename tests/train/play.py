"""Plays one story and judges it. `python -m tests.train.play NAME` plays one by hand and prints what happened."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rekindle.protocol.keys import fence_key, reply_key, request_key
from rekindle.protocol.launch_orders import ENV_MAILBOX, AttemptOrder, ResumePlan
from rekindle.protocol.mailbox import CheckpointRequest, Fence
from rekindle.protocol.manifests import Manifest, SaveKind
from tests.train.faults import Proxy, slow_s3
from tests.train.harm import ENV_HARM
from tests.train.judge import Mails, judge, plain_digests
from tests.train.launcher import LOOP, PATIENCE_S, ROOT, SCRIPTS, Nurseries, Run, wait_until
from tests.train.story import ALL, ANY_OR_NONE, EXAMPLE_STEPS, EXAMPLES, Act, End, Story

MORE_STEPS = 12  # that each rank still makes after the last act: training goes on
LAST = 4000  # far more than any story takes
UNDISTURBED_STEPS = 120  # of which the coupled kinds' weights are known


class Player:
    """One run of a story in `home`."""

    def __init__(self, story: Story, home: Path, nurseries: Nurseries) -> None:
        self.story = story
        self.run = Run(home, nurseries, world=story.world)
        self._nurseries = nurseries
        self._proxies: dict[int, Proxy] = {}
        self._asked: list[str] = []
        self._stack = ExitStack()
        self._blocked: Path | None = None

    def play(self, digests: Mapping[tuple[int, int], str]) -> list[str]:
        """What is wrong, as sentences. Raises: AssertionError where the run hangs."""
        try:
            self._start()
            for act in self.story.acts:
                self._when(act)
                self._do(act)
            self._replied()
            self._ended()
            return judge(self.story, self.run, digests)
        finally:
            self.run.close()
            self._stack.close()
            for proxy in self._proxies.values():
                proxy.close()

    # ---- beginning ---------------------------------------------------------------------------------------------

    def _start(self) -> None:
        story, home = self.story, self.run.home
        common = {
            "TRAIN_KIND": story.kind,
            "TRAIN_SPEC": json.dumps({"last": LAST, **story.spec}),
            ENV_HARM: json.dumps(story.harm),
            **story.env,
        }
        if story.is_example:
            common |= {
                "REKINDLE_EXAMPLE_DIR": str(home / "checkpoints"),
                "REKINDLE_EXAMPLE_STEPS": str(EXAMPLE_STEPS),
                "REKINDLE_EXAMPLE_SAVE_EVERY": str(story.spec.get("save_every", 1000)),
                "REKINDLE_EXAMPLE_PACE_S": str(story.spec.get("pace_s", 0.1)),
                "TORCHELASTIC_RUN_ID": "story",
            }
        if story.has_slow_s3:
            endpoint = self._stack.enter_context(slow_s3(30.0))
            common |= {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ACCESS_KEY_ID": "none",
                "AWS_SECRET_ACCESS_KEY": "none",
                "AWS_DEFAULT_REGION": "us-west-2",
                "AWS_EC2_METADATA_DISABLED": "true",
                "REKINDLE_MAILBOX": "s3://bucket/run",
            }
        if story.launch == "torchrun":
            self._torchrun(common)
            return
        if story.prepared is not None:
            _prepare(home / "checkpoints" / f"step-{story.prepared:06d}", story.prepared, story.world)
        port = self._host_store() if story.kind != "plain" else None
        for rank in range(story.world):
            env = self.run.env_of(rank, **common)
            if port is not None:
                if rank in story.proxied:
                    self._proxies[rank] = Proxy(port)
                shown = self._proxies[rank].port if rank in self._proxies else port
                env |= {
                    "MASTER_PORT": str(shown),
                    "TORCHELASTIC_USE_AGENT_STORE": "True",
                    "TORCHELASTIC_RESTART_COUNT": "0",
                }
            env |= {name: value.format(home=home) for name, value in story.env_of.get(rank, {}).items()}
            env = {name: value for name, value in env.items() if value != ""}
            if story.launch == "fork":
                self._fork(rank, env)
            else:
                python, path = self._interpreter(home)
                self.run.spawn(rank, env | {"PYTHONPATH": path}, [python, str(LOOP)])

    def _fork(self, rank: int, env: Mapping[str, str]) -> None:
        kind = self.story.kind
        if kind in EXAMPLES:
            argv = [SCRIPTS / "example.py", ROOT / "examples" / EXAMPLES[kind] / "train.py"]
            self.run.fork(rank, kind, env, argv)
        else:
            self.run.fork(rank, "light" if kind == "plain" else "torch", env, [LOOP])

    def _host_store(self) -> int:
        env = self.run.env_of(-1)
        nursery = self._nurseries.of("torch")
        self.store = nursery.start([str(SCRIPTS / "store_host.py")], env, self.run.home, self.run.home / "store.log")
        self._stack.callback(lambda: _kill(self.store))
        port = self.run.home / "port"
        assert wait_until(port.exists), "the store does not start"
        return int(port.read_text())

    def _torchrun(self, common: Mapping[str, str]) -> None:
        story = self.story
        env = self.run.env_of(0, **common)
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
            del env[name]
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(story.world)]
        command += [f"--max-restarts={story.spec.get('restarts', 0)}", str(LOOP)]
        self.run.spawn(0, env, command)

    def _interpreter(self, home: Path) -> tuple[str, str]:
        """The program that runs a rank, and its PYTHONPATH."""
        if self.story.launch == "spawn":
            return sys.executable, str(ROOT)
        pure = home / "pure"
        pure.mkdir(exist_ok=True)
        import boto3

        site = Path(boto3.__file__).parents[1]
        for name in ("boto3", "botocore", "s3transfer", "jmespath", "urllib3", "dateutil", "six.py"):
            target = pure / name
            if not target.exists():
                target.symlink_to(site / name)
        return self.story.launch, f"{ROOT}:{pure}"

    # ---- middle ------------------------------------------------------------------------------------------------

    def _when(self, act: Act) -> None:
        run = self.run
        if act.on is not None:
            kind, senders = act.on, [act.rank] if act.rank is not None else range(run.world)
            run.until(f"event {kind}", lambda: all(run.receiver.of(kind, rank) for rank in senders))
        else:
            run.until(f"step {act.step}", lambda: all(run.step_of(rank) >= act.step for rank in self._ranks_of(act)))

    def _ranks_of(self, act: Act) -> list[int]:
        """Those whose steps an act waits for, as far as they live. torchrun's are known by what they report."""
        alive = {rank.number for rank in self.run.alive()}
        if self.story.launch == "torchrun":
            alive = set(range(self.story.world)) if alive else set()
        hung = {event["rank"] for event in self.run.receiver.of("harm") if event["do"] == "hang"}
        return sorted((alive if act.rank is None else alive & {act.rank}) - self.story.stepless - hung)

    def _do(self, act: Act) -> None:
        do, _, detail = act.do.partition(":")
        if do == "ask":
            self._ask(act.deadline_s, int(detail or 1))
        elif do == "fence":
            self._fence(act)
        elif do == "signal":
            for rank in self.run.ranks:
                if act.ranks == ALL or rank.number in act.ranks:
                    rank.send(getattr(signal, detail))
        elif do == "signal ranks":  # torchrun's own ranks, by what they said
            for event in self.run.receiver.of("hello"):
                if act.ranks == ALL or event["rank"] in act.ranks:
                    _send(event["pid"], getattr(signal, detail))
        elif do in ("cut", "stall", "resume", "refuse"):
            for number in self._proxies if act.ranks == ALL else act.ranks:
                getattr(self._proxies[int(number)], "reset" if do == "cut" else do)()
        elif do == "kill the store":
            _kill(self.store)
        elif do == "pause":
            threading.Event().wait(float(detail))
        elif do == "wait":
            came = {rank: self.run.step_of(rank) for rank in self._ranks_of(act)}
            self.run.until(
                f"{act.steps} more steps",
                lambda: all(self.run.step_of(rank) >= came[rank] + act.steps for rank in self._ranks_of(act)),
            )
        else:
            self._harm_mailbox(do)

    def _ask(self, deadline_s: float, how_many: int) -> None:
        for _ in range(how_many):
            name = f"request-{len(self._asked) + 1}"
            self._asked.append(name)
            request = CheckpointRequest(
                request_id=name,
                job_id="story",
                attempt=self.story.attempt,
                deadline_s=deadline_s,
                reason="a story",
            )
            _put(self.run.home / request_key(name), request.to_json())

    def _fence(self, act: Act) -> None:
        fence = Fence(
            job_id="story",
            attempt="story-a2",
            attempt_number=2,
            superseded=(self.story.attempt,),
            written_at=datetime.now(UTC),
        )
        _put(self.run.home / fence_key(), fence.to_json())

    def _harm_mailbox(self, do: str) -> None:
        folder = self.run.home / "rekindle"
        if do == "remove the mailbox":
            for _ in range(100):  # it may be written to meanwhile
                shutil.rmtree(folder, ignore_errors=True)
                if not folder.exists():
                    return
        elif do == "block the mailbox":
            folder.rename(self.run.home / "rekindle.away")
            folder.touch()
            self._blocked = folder
        elif do == "unblock the mailbox":
            folder.unlink()
            (self.run.home / "rekindle.away").rename(folder)
            self._blocked = None
        else:
            raise ValueError(do)

    # ---- end ---------------------------------------------------------------------------------------------------

    def _replied(self) -> None:
        home, run = self.run.home, self.run
        if "none" in self.story.replies or not self._asked:
            return
        run.until(
            "reply to each request",
            lambda: all((home / reply_key(name)).exists() for name in self._asked) or not run.alive(),
        )

    def _ended(self) -> None:
        run, story = self.run, self.story
        gone = {*story.dead, *story.stuck}
        if story.launch != "torchrun" and not story.is_random:
            run.until(
                "end of the ranks that die",
                lambda: all(rank.status is not None for rank in run.ranks if rank.number in story.dead),
            )
        if story.end is End.FINISHED and not story.is_example:
            if story.launch != "torchrun":
                came = {rank.number: run.step_of(rank.number) for rank in run.ranks if rank.number not in gone}
                run.until(
                    f"{MORE_STEPS} more steps",
                    lambda: all(
                        run.step_of(number) >= min(step + MORE_STEPS, LAST) or not run.alive()
                        for number, step in came.items()
                    ),
                )
            run.end_soon()
        waited = [rank for rank in run.ranks if rank.number not in story.stuck]
        run.until("end of the ranks", lambda: all(rank.status is not None for rank in waited), PATIENCE_S)
        for rank in run.ranks:
            rank.send(signal.SIGKILL)
        run.until("end of the ranks that were stuck", lambda: not run.alive())
        if self._blocked is not None:
            self._harm_mailbox("unblock the mailbox")


def _prepare(folder: Path, step: int, world: int) -> None:
    folder.mkdir(parents=True)
    for rank in range(world):
        part = {"step": step, "rank": rank, "weight": plain_digests(step)[step], "filler": ""}
        (folder / f"rank-{rank}.json").write_text(json.dumps(part))


def _put(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_bytes(body)
    beside.replace(path)


def _kill(pid: int) -> None:
    _send(pid, signal.SIGKILL)


def _send(pid: int, number: int) -> None:
    import contextlib
    import os

    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _same_model(story: Story) -> dict[str, Any]:
    return {name: story.spec[name] for name in ("lr",) if name in story.spec}


# ---- the undisturbed run ---------------------------------------------------------------------------------------


def undisturbed(story: Story, folder: Path, nurseries: Nurseries) -> dict[tuple[int, int], str]:
    """(rank, step) → weights of the run that nothing happens to; kept in `folder`, where other tests find it."""
    if not story.is_coupled:
        return {(rank, step): digest for step, digest in plain_digests(LAST).items() for rank in range(story.world)}
    kept = folder / f"undisturbed-{story.kind}-{story.world}-{story.spec.get('lr')}.json"
    if not kept.exists():
        calm = Story(name="undisturbed", kind=story.kind, world=story.world, acts=())
        spec = {"last": UNDISTURBED_STEPS, "pace_s": 0.0, **_same_model(story)}
        player = Player(calm, Path(tempfile.mkdtemp(prefix="calm-", dir=folder)), nurseries)
        player.story = Story(
            name="undisturbed", kind=story.kind, world=story.world, acts=(), spec=spec, env={"REKINDLE_MONITOR": "off"}
        )
        try:
            player._start()
            player.run.until("end of the undisturbed run", lambda: len(player.run.ranks) > 0 and not player.run.alive())
            assert {rank.status for rank in player.run.ranks} == {0}, player.run.story()
            found = [[event["rank"], event["step"], event["digest"]] for event in player.run.receiver.of("step")]
        finally:
            player.run.close()
            player._stack.close()
        beside = kept.with_suffix(f".{id(player)}")
        beside.write_text(json.dumps(found))
        beside.replace(kept)
    return {(rank, step): digest for rank, step, digest in json.loads(kept.read_text())}


def play(story: Story, home: Path, shared: Path, nurseries: Nurseries) -> None:
    """Raises: AssertionError with all that is wrong, and with what happened."""
    digests = undisturbed(story, shared, nurseries)
    player = Player(story, home, nurseries)
    wrong = player.play(digests)
    if not wrong and story.then_resumes:
        sealed = [
            manifest
            for manifest in Mails(home, story.attempt).manifests.values()
            if manifest.kind is SaveKind.EMERGENCY
        ]
        newest = max(sealed, key=lambda one: one.step)
        player = Player(_resumed(story, newest), home, nurseries)
        for name in ("end", "finish", "port"):
            (home / name).unlink(missing_ok=True)
        wrong = player.play(digests)
        firsts = {min(event["step"] for event in player.run.receiver.of("step", rank)) for rank in range(story.world)}
        if firsts != {newest.step + 1}:
            wrong.append(f"the second attempt went on at {firsts}, not after step {newest.step}")
    assert not wrong, f"{story.name}:\n- " + "\n- ".join(wrong) + f"\n{player.run.story()}"


def _resumed(story: Story, manifest: Manifest) -> Story:
    plan = ResumePlan(step=manifest.step, uri=manifest.root)
    order = AttemptOrder(job_id="story", attempt_number=2, mailbox="", resume=plan)
    spec = {"last": manifest.step + 2 * MORE_STEPS, "pace_s": 0.0, **_same_model(story)}
    env = {name: value for name, value in order.apply({}).items() if name != ENV_MAILBOX}
    return Story(name=story.name, kind=story.kind, world=story.world, launch=story.launch, spec=spec, acts=(), env=env,
                 replies=ANY_OR_NONE, attempt="story-a2")  # fmt: skip


@contextmanager
def stage() -> Iterator[tuple[Path, Nurseries]]:
    nurseries = Nurseries()
    with tempfile.TemporaryDirectory(prefix="train-") as folder:
        try:
            yield Path(folder), nurseries
        finally:
            nurseries.close()


def main() -> int:
    from tests.train.random_story import random_story
    from tests.train.table import STORIES

    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("words", nargs="*", help="parts of the names of stories; all without any")
    arguments.add_argument("--seed", type=int, action="append", help="play the random story of this seed")
    arguments.add_argument("--times", type=int, default=1)
    given = arguments.parse_args()
    wanted = given.words
    chosen = [story for story in STORIES if not wanted or any(word in story.name for word in wanted)]
    if given.seed:
        chosen = [random_story(seed) for seed in given.seed]
    chosen *= given.times
    failed = 0
    with stage() as (folder, nurseries):
        import time

        for number, story in enumerate(chosen):
            began = time.monotonic()
            try:
                play(story, folder / str(number), folder, nurseries)
                result = "ok"
            except AssertionError as err:
                result, failed = f"FAILED\n{err}", failed + 1
            print(f"{time.monotonic() - began:6.1f} s  {story.name}: {result}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
