"""Other starts of a run that live, or will run by themselves: nothing of ours starts beside one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from rekindle.protocol.cluster.documents import OVER, AttemptDoc
from rekindle.protocol.cluster.names import first_attempt, parse_attempt
from rekindle.protocol.cluster.orders import RunTie, Sibling
from rekindle.protocol.keys import heartbeat_key
from rekindle.protocol.run_places import RunPlaces
from rekindle.protocol.wire import MAX_MESSAGE_BYTES, Place
from rekindle.slurm_agent.base.ports import SlurmError, SlurmUnavailable
from rekindle.slurm_agent.copies.capture import OF_A_RUN, StateFiles
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

_SHOWN: Final = ("AdminComment", "Extra")


@dataclass(frozen=True, slots=True, kw_only=True)
class Siblings:
    cluster: str
    reads: CopyReads
    watch: Watch
    owners: Owners
    files: UserFiles
    state: Callable[[Settings], StateFiles | RemoteState]

    def find(self, old: AttemptDoc, *, besides: Collection[int]) -> Sibling | None:
        """See `Commands.sibling`. One that is surely of the run comes first, then one that has nodes."""
        jobs = self.reads.jobs()
        own = next((job for job in jobs if job.job == old.slurm_job and job.user == old.user), None)
        alive = [job for job in jobs if job.user == old.user and _may_run(job) and job.job not in besides]
        if not old.user or not alive:
            return None
        details = self._details(alive)
        state = self.state(self.watch.current_settings())
        ours = self._of_the_old(old, own, state)
        facts = {job.job: self._facts(job, details.get(job.job, {}), state, like=ours) for job in alive}
        known = {job.job: _bare(job) for job in jobs if not job.is_lump} | facts
        resolved = self._resolver(old.attempt, alive[0])
        found = []
        for job in alive:
            stands = standing(facts[job.job], known)
            tie = same_run(ours, facts[job.job], resolved) if stands is not None else None
            if stands is not None and tie is None and self._is_heard_there(ours, facts[job.job], old, job, resolved):
                tie = RunTie.MAILBOX
            if stands is not None and tie is not None:
                found.append(Sibling(slurm_job=job.job, standing=stands, tie=tie, attempt=self._attempt(job)))
        return min(found, key=lambda other: (other.tie is RunTie.UNSURE, other.standing, other.slurm_job), default=None)

    def _is_heard_there(
        self, ours: RunFacts, theirs: RunFacts, old: AttemptDoc, job: Job, resolved: Callable[[str], str]
    ) -> bool:
        """One of them names no mailbox but in its script's Python, and its monitor has written to the other's.

        Only of a shared path; what lies in S3 the service lists. Raises: SlurmUnavailable where that hangs.
        """
        named, others = (RunIdentity.of(facts, resolved).mailboxes for facts in (ours, theirs))
        if bool(named) is bool(others):
            return False
        attempt = old.attempt if others else self._attempt(job) or _plain_name(self.cluster, job)
        places = (Place.parse(box) for box in named | others)
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
        """Of one that has ended: a record among all jobs' is not surely its own. Raises: SlurmUnavailable."""
        try:
            return self.reads.detail(job)
        except SlurmUnavailable:
            raise
        except SlurmError:
            return {}

    def _facts(
        self, job: Job, detail: Mapping[str, str], state: StateFiles | RemoteState, like: RunFacts | None = None
    ) -> RunFacts:
        """`like`: whose arguments it is compared by; they are searched for in all of slurmctld's state."""
        script = state.script(job.kept_as)
        line = (of_line(detail.get("SubmitLine") or "", (job.command,)).get("comment") or "").partition(" ")[0]
        asked = self.watch.asked(job)
        words = (job.comment, line, *(text.value(detail.get(name)) for name in _SHOWN))
        said = (asked, *(comment.parse(word) for word in words))
        is_alike = script is not None and (like is None or like.script == script)
        arguments = None
        if is_alike:  # slurmctld writes its state down some seconds later; a line may be shown at once
            arguments = state.arguments(job, detail.get("SubmitLine", ""), self.watch.current_settings().version)
            arguments = _after_the_script(job, detail.get("SubmitLine") or "") if arguments is None else arguments
        return replace(
            _bare(job),
            output=job.stdout,
            script=script,
            arguments=arguments,
            says=tuple(self.owners.own(comment_read, job) for comment_read in said if comment_read is not None),
            environment=_with_places(self._variables(job, state, like=None if asked else like), script),
            is_protected=asked is not None,
        )

    def _of_the_old(self, old: AttemptDoc, own: Job | None, state: StateFiles | RemoteState) -> RunFacts:
        """By what slurmctld still shows of it, and by what was captured of it."""
        job_id = old.job_id or parse_attempt(old.attempt).restarted(0).name
        real = old.places or RunPlaces()  # where a link that has moved since has led
        kept = tuple(comment.Comment(mailbox=it.mailbox, checkpoints=it.checkpoints) for it in (old, real))
        if own is not None:
            facts = self._facts(own, self._detail(own), state)
            return replace(facts, says=(*facts.says, *kept), job_id=job_id)
        facts = RunFacts(job=old.slurm_job, user=old.user, name=old.name, job_id=job_id, says=kept, state=old.state)
        facts = replace(facts, started_at=old.started_at, ended_at=old.ended_at)
        spec = self.watch.spec(old.spec) if old.spec is not None else None
        if spec is None:
            return facts
        said = comment.parse(spec.options.get("comment") or "")
        return replace(
            facts,
            folder=spec.workdir,
            output=spec.options.get("output") or "slurm-%j.out",
            script=spec.script or None,
            arguments=spec.arguments if spec.script else None,
            says=(*kept, *((said,) if said is not None else ())),
            environment=_with_places(spec.environment, spec.script),
        )

    def _variables(self, job: Job, state: StateFiles | RemoteState, *, like: RunFacts | None) -> Mapping[str, str]:
        """like: of a job that is not protected, what tells another start of that run alone."""
        if like is None:
            return state.environment(job.kept_as)
        used = variables_in(like.script)
        return state.variables(job.kept_as, used, OF_A_RUN)

    def _attempt(self, job: Job) -> str | None:
        asked = self.watch.asked(job)
        if asked is None:
            return None
        return base_of(self.cluster, job, self.owners.own(asked, job)).restarted(job.restart).name

    def _resolver(self, whose: str, of_user: Job) -> Callable[[str], str]:
        """The real path of a place, the first one of those that lead there, asked once for each. Raises:
        SlurmUnavailable where its file system hangs.
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
    if script is None or "REKINDLE_" not in script:
        return environment
    return {**environment, **read_script(script, environment).places}


def _after_the_script(job: Job, line: str) -> tuple[str, ...] | None:
    words = line.split()
    named = [n for n, word in enumerate(words) if word.rpartition("/")[2] == job.command.rpartition("/")[2]]
    return tuple(words[named[-1] + 1 :]) if named else None


def _plain_name(cluster: str, job: Job) -> str:
    return first_attempt(cluster, job.job).restarted(job.restart).name


def _may_run(job: Job) -> bool:
    """Tasks of an array that wait share one record, and will run as well."""
    return not job.het_offset and not job.is_held and job.state not in OVER


def _bare(job: Job) -> RunFacts:
    """What squeue alone tells."""
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
