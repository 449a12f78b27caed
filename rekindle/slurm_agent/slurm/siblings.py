"""Finds a sibling: another start of the same run that lives, or will run by itself. Nothing of ours starts beside one.

`Commands.sibling` asks before an order submits or releases a job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from rekindle.protocol.cluster.documents import OVER, AttemptDoc
from rekindle.protocol.cluster.names import first_attempt, parse_attempt
from rekindle.protocol.cluster.orders import RunTie, Sibling
from rekindle.protocol.keys import heartbeat_key
from rekindle.protocol.run_places import RunPlaces
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, Place
from rekindle.slurm_agent.base.ports import SlurmError, SlurmUnavailable
from rekindle.slurm_agent.copies.capture import ALL, OF_A_RUN, StateFiles
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.files.workers import Hangs
from rekindle.slurm_agent.privileged.remote import RemoteState
from rekindle.slurm_agent.reading import comment, text
from rekindle.slurm_agent.reading.jobs import Job
from rekindle.slurm_agent.reading.line import of_line
from rekindle.slurm_agent.reading.nodes import Settings
from rekindle.slurm_agent.reading.run_identity import RunFacts, RunIdentity, same_run, standing, variables_in
from rekindle.slurm_agent.reading.script import read as read_script
from rekindle.slurm_agent.watching.attempt_docs import STARTED, base_of
from rekindle.slurm_agent.watching.owners import Owners
from rekindle.slurm_agent.watching.watcher import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    """Compares the jobs that Slurm shows with the start that an order is about.

    `state` opens slurmctld's state files, or the helper that reads them with root's rights.
    """

    cluster: str
    reads: CopyReads
    watch: Watch
    owners: Owners
    files: UserFiles
    state: Callable[[Settings], StateFiles | RemoteState]

    def find(self, old: AttemptDoc, *, besides: Collection[int]) -> Sibling | None:
        """See `Commands.sibling`. One that is surely of the run comes first, then one that has nodes."""
        jobs = self.reads.jobs()
        candidates = [job for job in jobs if job.user == old.user and _may_run(job) and job.job not in besides]
        if not old.user or not candidates:
            return None
        details = self._details(candidates)
        state = self.state(self.watch.current_settings())
        old_job = next((job for job in jobs if job.job == old.slurm_job and job.user == old.user), None)
        old_facts = self._facts_of_old(old, old_job, state)
        facts = {job.job: self._facts(job, details.get(job.job, {}), state, like=old_facts) for job in candidates}
        known = {job.job: _squeue_facts(job) for job in jobs if not job.is_lump} | facts
        resolved = self._resolver(old.attempt, candidates[0])
        found = []
        for job in candidates:
            stands = standing(facts[job.job], known)
            if stands is None:
                continue
            tie = same_run(old_facts, facts[job.job], resolved)
            if tie is None and self._writes_to_the_same_mailbox(old_facts, facts[job.job], old, job, resolved):
                tie = RunTie.MAILBOX
            if tie is not None:
                found.append(Sibling(slurm_job=job.job, standing=stands, tie=tie, attempt=self._attempt(job)))
        return min(found, key=lambda other: (other.tie is RunTie.UNSURE, other.standing, other.slurm_job), default=None)

    def _writes_to_the_same_mailbox(
        self, old_facts: RunFacts, other_facts: RunFacts, old: AttemptDoc, job: Job, resolved: Callable[[str], str]
    ) -> bool:
        """Whether one of them names no mailbox outside its script's Python, and its monitor wrote to the other's.

        Only for a shared path; what lies in S3 the service lists. Raises: SlurmUnavailable where that path hangs.
        """
        olds, others = (RunIdentity.of(facts, resolved).mailboxes for facts in (old_facts, other_facts))
        if bool(olds) is bool(others):
            return False
        attempt = old.attempt if others else self._attempt(job) or _plain_name(self.cluster, job)
        places = (Place.parse(mailbox) for mailbox in olds | others)
        paths = [place.join(heartbeat_key(attempt)).path for place in places if place.bucket is None]
        return any(self._is_there(old.attempt, path, job) for path in paths)

    def _is_there(self, whose: str, path: str, of_user: Job) -> bool:
        try:
            return self.files.read(whose, path, MAX_MESSAGE_BYTES, of_user.uid, of_user.gid) is not None
        except Hangs as err:
            raise SlurmUnavailable(f"whether another start of the run lives: {err}"[:300]) from err
        except OSError:
            return False

    def _details(self, jobs: Collection[Job]) -> Mapping[int, Mapping[str, str]]:
        """What cannot be read of one job counts as nothing said there. Raises: SlurmUnavailable."""
        try:
            return self.reads.details([*jobs])
        except SlurmUnavailable:
            raise
        except SlurmError:
            return {}

    def _detail(self, job: Job) -> Mapping[str, str]:
        """What scontrol shows of one job when asked for it alone: in the list of all jobs, the record of one that has
        ended may be another's. Raises: SlurmUnavailable.
        """
        try:
            return self.reads.detail(job)
        except SlurmUnavailable:
            raise
        except SlurmError:
            return {}

    def _facts(
        self, job: Job, detail: Mapping[str, str], state: StateFiles | RemoteState, like: RunFacts | None = None
    ) -> RunFacts:
        """What is known of a job. `like`: the start that it is compared with; where its script is another one, neither
        arguments nor the whole environment are read.
        """
        script = state.script(job.kept_as)
        submit_line = detail.get("SubmitLine") or ""
        of_submit_line = (of_line(submit_line, (job.command,)).get("comment") or "").partition(" ")[0]
        protection = self.watch.asked(job)
        texts = (job.comment, of_submit_line, *(text.value(detail.get(name)) for name in comment.SHOWN))
        comments = (protection, *map(comment.parse, texts))
        is_alike = script is not None and (like is None or like.script == script)
        arguments = None
        if is_alike:  # slurmctld writes its state down some seconds later; a line may be shown at once
            arguments = state.arguments(job, submit_line, self.watch.current_settings().version)
            arguments = _after_the_script(job, submit_line) if arguments is None else arguments
        return replace(
            _squeue_facts(job),
            output=job.stdout,
            script=script,
            arguments=arguments,
            says=tuple(self.owners.own(parsed, job) for parsed in comments if parsed is not None),
            environment=_with_places(self._variables(job, state, like=None if protection else like), script),
            is_protected=protection is not None,
        )

    def _facts_of_old(self, old: AttemptDoc, old_job: Job | None, state: StateFiles | RemoteState) -> RunFacts:
        """What is known of the start that the order is about: by Slurm, by its document, and by what was captured.

        `old_job`: as Slurm still shows it; None where it has forgotten it.
        """
        job_id = old.job_id or parse_attempt(old.attempt).restarted(0).name
        real = old.places or RunPlaces()  # where a link that has moved since has led
        kept = tuple(comment.Comment(mailbox=places.mailbox, checkpoints=places.checkpoints) for places in (old, real))
        if old_job is not None:
            facts = self._facts(old_job, self._detail(old_job), state)
            return replace(facts, says=(*facts.says, *kept), job_id=job_id)
        facts = RunFacts(
            job=old.slurm_job,
            user=old.user,
            name=old.name,
            job_id=job_id,
            says=kept,
            state=old.state,
            started_at=old.started_at,
            ended_at=old.ended_at,
        )
        spec = self.watch.spec(old.spec) if old.spec is not None else None
        if spec is None:
            return facts
        submitted = comment.parse(spec.options.get("comment") or "")
        return replace(
            facts,
            folder=spec.workdir,
            output=spec.options.get("output") or "slurm-%j.out",
            script=spec.script or None,
            arguments=spec.arguments if spec.script else None,
            says=(*kept, *((submitted,) if submitted is not None else ())),
            environment=_with_places(spec.environment, spec.script),
        )

    def _variables(self, job: Job, state: StateFiles | RemoteState, *, like: RunFacts | None) -> Mapping[str, str]:
        """The job's environment; of a job that is not protected, only what shows whether it is a start of the run of
        `like`: other people's variables are not read.
        """
        if like is None:
            return state.variables(job.kept_as, (), ALL)
        used = variables_in(like.script)
        return state.variables(job.kept_as, used, OF_A_RUN)

    def _attempt(self, job: Job) -> str | None:
        """The name of the job's attempt; None where it is not protected."""
        protection = self.watch.asked(job)
        if protection is None:
            return None
        return base_of(self.cluster, job, self.owners.own(protection, job)).restarted(job.restart).name

    def _resolver(self, whose: str, of_user: Job) -> Callable[[str], str]:
        """A function that gives the real path of a place, and one spelling for all places that are the same folder.

        Each place is looked up once. It raises SlurmUnavailable where the file system hangs.
        """
        real, first = dict[str, str](), dict[str, str]()

        def resolved(path: str) -> str:
            if path not in real:
                try:
                    place, folder = self.files.resolved_folder(whose, path, of_user.uid, of_user.gid)
                    real[path] = first.setdefault(folder, place)
                except Hangs as err:
                    raise SlurmUnavailable(f"whether another start of the run lives: {err}"[:300]) from err
                except OSError:
                    real[path] = path
            return real[path]

        return resolved


def _with_places(environment: Mapping[str, str], script: str | None) -> Mapping[str, str]:
    """The environment with the places that the script itself exports to its steps."""
    if script is None or "REKINDLE_" not in script:
        return environment
    return {**environment, **read_script(script, environment).places}


def _after_the_script(job: Job, line: str) -> tuple[str, ...] | None:
    """What follows the script's name in the line of its submission; None where it is not named there."""
    words = line.split()
    script = job.command.rpartition("/")[2]
    named_at = [index for index, word in enumerate(words) if word.rpartition("/")[2] == script]
    return tuple(words[named_at[-1] + 1 :]) if named_at else None


def _plain_name(cluster: str, job: Job) -> str:
    return first_attempt(cluster, job.job).restarted(job.restart).name


def _may_run(job: Job) -> bool:
    """Whether it runs, or may begin to. Tasks of an array that wait share one record, and count as well."""
    return not job.het_offset and not job.is_held and job.state not in OVER


def _squeue_facts(job: Job) -> RunFacts:
    """What squeue shows of a job."""
    return RunFacts(
        job=job.job,
        user=job.user,
        name=job.name,
        folder=job.workdir,
        state=job.state,
        is_held=job.is_held,
        is_task=job.is_array_task,
        dependency=job.dependency,
        reason=job.reason,
        submitted_at=job.submitted if not job.restart else None,
        started_at=job.started if job.state in STARTED | OVER else None,
        ended_at=job.ends if job.state in OVER else None,
    )
