"""What is captured of submissions, and what is submitted again: all that needs root's or another user's rights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rekindle.protocol.cluster.documents import JobSpec
from rekindle.protocol.cluster.orders import Order
from rekindle.slurm_agent.base.ports import SlurmRefused, SlurmUnavailable
from rekindle.slurm_agent.copies.capture import StateFiles, environment_of
from rekindle.slurm_agent.copies.compare import LEFT_OUT
from rekindle.slurm_agent.copies.hashes import OF_THIS_PROCESS, ValueHashes, surely_differ
from rekindle.slurm_agent.copies.kept import SpecFolder
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.copies.spec import (
    CapturedSpec,
    capture_spec,
    excluded_by,
    excluding_none_of,
    ids_of,
    sbatch,
    spec_differences,
    submit,
    submitted_from,
)
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.files.workers import Hangs
from rekindle.slurm_agent.privileged.gate import Gate
from rekindle.slurm_agent.reading import comment
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.run import Runner
from rekindle.slurm_agent.reading.sizes import cannot_shrink

KEY: Final = "secrets"  # of the comment: `secrets=without`, or `secrets=FILE`
WITHOUT: Final = "without"
MAX_FILE_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What was captured. `name`: that of the spec, which is kept here. `exclude`: the nodes that its user excluded."""

    taken: CapturedSpec
    name: str | None
    exclude: str


class Captures:
    """What is known of how jobs were submitted. `kept` holds it."""

    def __init__(self, reads: CopyReads, kept: SpecFolder | None = None) -> None:
        self._reads = reads
        self.kept = kept or SpecFolder()

    def state(self, settings: Settings) -> StateFiles:
        """What slurmctld keeps."""
        return StateFiles(settings.state_location)

    def capture(
        self,
        job: Job,
        detail: Mapping[str, str],
        settings: Settings,
        exclude: str | None,
        since: float | None = None,  # noqa: ARG002
    ) -> Capture:
        """A copy's comment is made from `job.comment`. exclude: as the user had it, where that is known already.
        since, by time.monotonic: many are captured, and root's helper need not ask Slurm about each again.

        Raises: SlurmUnavailable; MailboxError.
        """
        taken = capture_spec(self._reads, settings, job, detail, self.kept.hashes)
        own = (taken.spec.options.get("exclude") or "") if taken.spec is not None else ""
        exclude = own if exclude is None else exclude
        taken = with_exclude(taken, exclude)
        name = self.kept.put(taken.spec) if taken.spec is not None else None
        return Capture(taken=taken, name=name, exclude=exclude)


class Copies:
    """Submits what was captured, as its user. `settings` gives slurmctld's."""

    def __init__(
        self,
        *,
        runner: Runner,
        reads: CopyReads,
        gate: Gate,
        settings: Callable[[], Settings],
        files: UserFiles,
        hashes: ValueHashes = OF_THIS_PROCESS,
    ) -> None:
        self._runner = runner
        self._reads = reads
        self._gate = gate
        self._settings = settings
        self._files = files
        self._hashes = hashes

    def submit(self, spec: JobSpec, order: Order, old: int | None) -> int:
        """old: the job that was submitted so, where slurmctld still knows it. Raises: SlurmError."""
        spec, order = self._there(spec, order)
        secrets = self._prepared(spec, order, old)
        self._gate.may_submit(spec.user, spec.options)
        copy = submit(self._runner, spec, order, secrets=secrets)
        self._gate.copy(copy)
        return copy

    def rehearse(self, spec: JobSpec, order: Order, old: int | None) -> None:
        """sbatch --test-only: nothing is submitted. Raises: SlurmError; SlurmRefused where it would not be taken."""
        sbatch(self._runner, spec, order, self._prepared(spec, order, old), "--test-only")

    def differences(self, spec: JobSpec, order: Order, copy: Job) -> tuple[str, ...]:
        """See `Commands`. Raises: SlurmError."""
        spec, order = self._there(spec, order)
        settings = self._settings()
        environment = environment_of(settings.state_location, copy.job)
        detail = self._reads.detail(copy)
        return spec_differences(spec, order, copy, detail, environment, settings.version, self._hashes)

    def other_secrets(self, spec: JobSpec, order: Order, copy: int) -> tuple[str, ...]:  # noqa: ARG002
        """See `Commands`. Raises: SlurmError."""
        environment = environment_of(self._settings().state_location, copy)
        return _other_secrets(spec, environment.all or {}, self._hashes)

    def fixed(self, job: Job, detail: Mapping[str, str]) -> str:
        """Why the job could not run on fewer nodes; "" where it could. Raises: SlurmError."""
        environment = environment_of(self._settings().state_location, job.job)
        return cannot_shrink(detail, environment.all)

    # ---- parts

    def _there(self, spec: JobSpec, order: Order) -> tuple[JobSpec, Order]:
        """Without nodes that are nodes no more, replaced or removed: Slurm refuses a list with one of them in it."""
        names = excluded_by(spec, order)
        gone = frozenset(names) - {node.name for node in self._reads.nodes()} if names else frozenset()
        return excluding_none_of(gone, spec, order)

    def _prepared(self, spec: JobSpec, order: Order, old: int | None) -> Mapping[str, str]:
        """The variables that the spec leaves out. Raises: SlurmRefused, SlurmUnavailable: sbatch cannot be called."""
        for what, path in (("SLURM_SUBMIT_DIR", submitted_from(spec)), ("WorkDir", spec.workdir)):
            self._check_folder(what, path, spec, order)
        job = self._reads.job(old) if old is not None and spec.left_out else None
        is_own = job is not None and job.user == spec.user  # no other's secrets are handed over
        whole = environment_of(self._settings().state_location, job.job).all if job is not None and is_own else None
        return _secrets_of(spec, whole, self._files)

    def _check_folder(self, what: str, path: str, spec: JobSpec, order: Order) -> None:
        """sbatch hangs where a path does; and slurmd starts a job whose folder is gone in /tmp."""
        try:
            is_there = not path or self._files.is_folder(order.attempt or spec.user, path, *ids_of(spec))
        except Hangs as err:
            raise SlurmUnavailable(f"sbatch: {err}"[:300]) from err
        except OSError as err:
            raise SlurmUnavailable(f"sbatch: {what} {path}: {err}"[:300]) from err
        if not is_there:
            raise SlurmRefused(f"sbatch: {what} {path} is no folder on this head node"[:300])


def with_exclude(taken: CapturedSpec, exclude: str) -> CapturedSpec:
    """The same capture with the nodes that the user excluded, as they were when the job was first seen."""
    if taken.spec is None or (taken.spec.options.get("exclude") or "") == exclude:
        return taken
    options = {name: given for name, given in taken.spec.options.items() if name != "exclude"}
    if exclude:
        options["exclude"] = exclude
    return replace(taken, spec=replace(taken.spec, options=options))


def _secrets_of(spec: JobSpec, whole: Mapping[str, str] | None, files: UserFiles) -> Mapping[str, str]:
    """The variables that the spec leaves out.

    whole: the old job's environment, while slurmctld knows it; after that they come as the job's comment says, from its
    user's own file of lines NAME=value, or not at all.

    Raises: SlurmRefused where one of them would be lost without a word of its user; SlurmUnavailable.
    """
    if not spec.left_out:
        return {}
    found = whole
    if found is None:
        asked = comment.parse(spec.options.get("comment") or "")
        said = dict(asked.others).get(KEY, "") if asked is not None else ""
        if said == WITHOUT:
            return {}
        found = _secrets_in(said, spec, files) if said.startswith("/") else {}
    lost = [name for name in spec.left_out if name not in found]
    if lost:
        text = f"sbatch: the secrets {', '.join(lost)} of the submission are not kept, and cannot be read any more"
        raise SlurmRefused(f"{text[:400]}: give {KEY}=FILE or {KEY}={WITHOUT} in the comment")
    return {name: found[name] for name in spec.left_out}


def _other_secrets(spec: JobSpec, copy: Mapping[str, str], hashes: ValueHashes) -> tuple[str, ...]:
    """The variables that the spec leaves out and that have another value in the copy's environment. Pure."""
    there = {name: hashes.of(name, copy[name]) for name in spec.left_out if name in copy}
    before = {name: spec.shown.get(f"{LEFT_OUT}{name}") or given for name, given in there.items()}
    return tuple(name for name, given in there.items() if surely_differ(before[name], given))


def _secrets_in(path: str, spec: JobSpec, files: UserFiles) -> Mapping[str, str]:
    """Read as the job's user."""
    try:
        raw = files.read(spec.user, path, MAX_FILE_BYTES, *ids_of(spec)) or b""
    except Hangs as err:
        raise SlurmUnavailable(f"sbatch: {err}"[:300]) from err
    except OSError as err:
        raise SlurmRefused(f"sbatch: the file of secrets {path} cannot be read: {err}"[:300]) from err
    pairs = (line.removeprefix("export ").partition("=") for line in raw.decode("utf-8", "replace").splitlines())
    return {name.strip(): given.strip().strip("\"'") for name, equals, given in pairs if equals}
