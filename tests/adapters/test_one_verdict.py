"""One verdict: the seal, a start, the command line, the service and the agent say the same of what lies there.

Each story is told once and played on a disk and in a bucket. What the seal refuses has no manifest, as in a real run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from moto import mock_aws

from chalicelib.aws.s3.mailbox import S3Mailbox
from rekindle.cli.tools.checkpoint_files import files_at, judged
from rekindle.monitor.base.aws import Clients
from rekindle.monitor.mail.boxes import open_box
from rekindle.monitor.saving.measure import Claim, SaveIncomplete, measure
from rekindle.monitor.saving.saved import SaveResult
from rekindle.protocol.manifests import Manifest, SaveKind
from rekindle.protocol.wire import Place
from rekindle.slurm_agent.files import found
from tests.adapters.conftest import REGION, make_client
from tests.adapters.samples import attempt, job
from tests.checkpoints.made import dcp_metadata, torch_archive, trainer_state
from tests.monitor.boxes import start_monitor

BUCKET, PREFIX = "runs-bucket", "lm"
JOB = "lm-7b"


def state(step: int, value: float = 1.0) -> bytes:
    """Of that step, as long for each."""
    return torch_archive({"global_step": step, "model": {"w": f"{value:09.4f}"}, "optimizer": {"param_groups": []}})


def tensors(value: float) -> bytes:
    data = np.full((64, 64), value, np.float32).tobytes()
    header = b'{"w":{"dtype":"F32","shape":[64,64],"data_offsets":[0,16384]}}'
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data


def hugging_face(step: int, value: float = 1.0) -> dict[str, bytes]:
    return {
        "model.safetensors": tensors(value),
        "optimizer.pt": state(step),
        "scheduler.pt": torch_archive({"last_epoch": step}),
        "rng_state.pth": torch_archive({}),
        "trainer_state.json": trainer_state(step),
    }


def shards(step: int) -> dict[str, bytes]:
    files = {f"__{rank}_0.distcp": bytes([step % 256]) * 4096 for rank in (0, 1)}
    return {**files, ".metadata": dcp_metadata({name: len(body) for name, body in files.items()})}


@dataclass
class Side:
    """A run's folder or prefix, which is its mailbox too."""

    place: Place
    clients: Clients = field(default_factory=Clients)
    sealed: dict[int, Manifest] = field(default_factory=dict)

    # ---- what the script does ----

    def put(self, root: str, files: dict[str, bytes] | bytes) -> None:
        for name, body in ({"": files} if isinstance(files, bytes) else files).items():
            self._put(f"{root}/{name}".rstrip("/"), body)

    def seal(self, step: int, root: str) -> None:
        """As the monitor does after a save: no manifest for what it refuses."""
        try:
            measured = measure(SaveResult(path=self._path(root)), self.clients, claim=Claim(step=step))
        except SaveIncomplete:
            return
        if measured.nan is not None:
            return
        self.sealed[step] = manifest = Manifest(
            job_id=JOB, attempt=JOB, attempt_number=1, step=step, kind=SaveKind.PERIODIC, root=measured.root,
            files=measured.files, world_size=1, saved_at=datetime.now(UTC),
        )  # fmt: skip
        open_box(self.place.uri, self.clients).put(manifest.key, manifest.to_json())

    def save(self, step: int, root: str, files: dict[str, bytes] | bytes) -> None:
        self.put(root, files)
        self.seal(step, root)

    def lose(self, path: str) -> None: ...

    def _put(self, path: str, body: bytes) -> None: ...

    def _path(self, root: str) -> str:
        place = self.place.join(root)
        return place.uri if place.bucket else place.path

    # ---- what each of them says: the steps that may be resumed from ----

    def command_line(self) -> set[int]:
        manifests = [self.sealed[step] for step in sorted(self.sealed)]
        items = judged(files_at(self.place), self.place, manifests)
        return {item.step for item in items if item.is_complete and item.step is not None}

    def service(self) -> set[int]:
        raise NotImplementedError

    def again(self) -> int | None:
        """A life of the same attempt that begins in its place, or one of a later attempt without a plan."""
        return self._start().step

    def planned(self) -> dict[int, int | None]:
        """By the sealed step that the service's plan names: the step that a new attempt is handed."""
        return {
            step: self._start(
                REKINDLE_RESUME_STEP=str(step),
                REKINDLE_RESUME_URI=manifest.root,
                REKINDLE_RESUME_MANIFEST=self.place.join(manifest.key).uri,
                TRAINING_JOB_NAME=f"{JOB}-r2",
            ).step
            for step, manifest in self.sealed.items()
        }

    def _start(self, **env: str) -> Any:
        own = {"REKINDLE_JOB_ID": JOB, "TRAINING_JOB_NAME": JOB, "REKINDLE_ATTEMPT": "2", "REKINDLE_MONITOR": "off"}
        own["TORCHELASTIC_RESTART_COUNT"] = "1"  # a start that waits for a slow store, as a busy machine's is
        where = {} if self.place.bucket else {"REKINDLE_CHECKPOINT_DIR": self.place.path}
        return start_monitor(env={**own, **where, "REKINDLE_MAILBOX": self.place.uri, **env}).resume


class Disk(Side):
    """service: as the Slurm agent tells it what lies on a shared path."""

    def _put(self, path: str, body: bytes) -> None:
        time.sleep(0.02)  # a tick of the file system
        place = Path(self._path(path))
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)

    def lose(self, path: str) -> None:
        Path(self._path(path)).unlink()

    def copied(self) -> None:
        """By a program that keeps no times."""
        for path in Path(self.place.path).rglob("*"):
            if path.is_file() and "manifests" not in path.parts:
                body = path.read_bytes()
                path.unlink()
                path.write_bytes(body)

    def service(self) -> set[int]:
        manifests = found.manifests_in(self.place.path)
        said = found.judge(JOB, self.place.path, manifests, datetime.now(UTC), mailbox=self.place.path)
        return {item.step for item in said.checkpoints if not item.problems}


@dataclass
class Bucket(Side):
    def __post_init__(self) -> None:
        self.client = make_client("s3")
        self.client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": REGION})

    def _put(self, path: str, body: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=f"{PREFIX}/{path}", Body=body)

    def lose(self, path: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=f"{PREFIX}/{path}")

    def archive(self, root: str) -> None:
        """As a lifecycle rule does."""
        for key, *_ in list(self.clients.objects(BUCKET, f"{PREFIX}/{root}")):
            source = {"Bucket": BUCKET, "Key": key}
            self.client.copy_object(Bucket=BUCKET, Key=key, CopySource=source, StorageClass="DEEP_ARCHIVE")

    def copied(self) -> None:
        """In parts, which gives other ETags."""
        for key, *_ in list(self.clients.objects(BUCKET, PREFIX)):
            if "/manifests/" not in key:
                body = self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
                upload = self.client.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]
                part = {"Bucket": BUCKET, "Key": key, "UploadId": upload, "PartNumber": 1}
                etag = self.client.upload_part(**part, Body=body)["ETag"]
                parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
                self.client.complete_multipart_upload(Bucket=BUCKET, Key=key, UploadId=upload, MultipartUpload=parts)

    def service(self) -> set[int]:
        run = replace(attempt(), submitted_at=datetime(2020, 1, 1, tzinfo=UTC))
        views = S3Mailbox(self.client, bucket="stack").checkpoints(job(mailbox=self.place.uri), [run]).value
        return {view.step for view in views if not view.problems and not view.fenced}


Story = Callable[[Any], None]


def one_name_and_a_rewind(run: Side) -> None:
    for step in (20, 40, 60):
        run.save(step, "ckpt.pt", state(step, step))


def one_name_and_a_kill_before_the_seal(run: Side) -> None:
    run.save(20, "ckpt.pt", state(20, 20))
    run.put("ckpt.pt", state(60, 60))


def one_folder_half_old(run: Side) -> None:
    files = {"model.pt": state(20, 20), "optim.pt": state(20, 20)}
    run.save(20, "state/step-20", files)
    run.put("state/step-20/optim.pt", state(20, 21))


def a_shard_is_missing(run: Side) -> None:
    for step in (20, 40):
        run.save(step, f"step-{step}", shards(step))
    run.lose("step-40/__1_0.distcp")


def a_shard_was_never_there(run: Side) -> None:
    run.put("step-20", shards(20))
    run.put("step-40", {name: body for name, body in shards(40).items() if name != "__1_0.distcp"})


def weights_are_nan(run: Side) -> None:
    run.put("checkpoint-10", hugging_face(10))
    run.put("checkpoint-20", hugging_face(20, float("nan")))


def the_scheduler_was_lost(run: Side) -> None:
    run.put("checkpoint-10", hugging_face(10))
    run.put("checkpoint-20", {name: body for name, body in hugging_face(20).items() if name != "scheduler.pt"})


def wrong_step_inside(run: Side) -> None:
    for step in (10, 20):
        run.put(f"step-{step}.pt", state(step))
    run.put("step-30.pt", state(20))


def a_folder_of_ones_own_lacks_a_rank(run: Side) -> None:
    for step in (100, 200, 300):
        ranks = [rank for rank in (0, 1) if (step, rank) != (300, 1)]
        files = {
            f"actor/{part}_world_size_2_rank_{rank}.pt": state(step) for part in ("model", "optim") for rank in ranks
        }
        run.put(f"global_step_{step}", {**files, "data.pt": state(step)})


def a_part_beside_it_is_missing(run: Side) -> None:
    for step in (500, 1000):
        for name in (f"model_{step:06d}.pt", *(f"optim_{step:06d}_rank{rank}.pt" for rank in (0, 1))):
            run.put(f"d20/{name}", state(step))
    run.lose("d20/optim_001000_rank1.pt")


def all_is_copied(run: Any) -> None:
    for step in (20, 40):
        run.save(step, f"step-{step}.pt", state(step, step))
    run.copied()


def all_is_well(run: Side) -> None:
    for step in (10, 20):
        run.put(f"checkpoint-{step}", hugging_face(step))
        run.seal(step, f"checkpoint-{step}")


def archived(run: Any) -> None:
    for step in (20, 40):
        run.save(step, f"step-{step}.pt", state(step, step))
    run.archive("step-40.pt")


def archived_without_a_manifest(run: Any) -> None:
    for step in (20, 40):
        run.put(f"step-{step}.pt", state(step, step))
    run.archive("step-40.pt")


STORIES: dict[Story, set[int]] = {
    all_is_well: {10, 20},
    one_name_and_a_rewind: {60},
    one_name_and_a_kill_before_the_seal: set(),
    one_folder_half_old: set(),
    a_shard_is_missing: {20},
    a_shard_was_never_there: {20},
    weights_are_nan: {10},
    the_scheduler_was_lost: {10},
    wrong_step_inside: {10, 20},
    a_folder_of_ones_own_lacks_a_rank: {100, 200},
    a_part_beside_it_is_missing: {500},
    all_is_copied: {20, 40},
}
IN_S3: dict[Story, set[int]] = {archived: {20}, archived_without_a_manifest: {20}}


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(Place(bucket=None, path=str(tmp_path / "run")))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    for name, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "DEFAULT_REGION": REGION}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    with mock_aws():
        yield Bucket(Place(bucket=BUCKET, path=PREFIX))


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_on_a_disk_all_say_the_same(story: Story, disk: Disk) -> None:
    story(disk)
    usable = STORIES[story]
    assert (disk.command_line(), disk.service()) == (usable, usable)
    assert disk.again() == max(usable, default=None)
    for step, handed in disk.planned().items():
        assert handed == step if step in usable else handed in (*(s for s in usable if s <= step), None), step


@pytest.mark.parametrize("story", {**STORIES, **IN_S3}, ids=lambda story: story.__name__)
def test_in_a_bucket_all_say_the_same(story: Story, bucket: Bucket) -> None:
    story(bucket)
    usable = {**STORIES, **IN_S3}[story]
    assert (bucket.command_line(), bucket.service()) == (usable, usable)
    if bucket.sealed:
        assert bucket.again() == max(usable, default=None)
