"""Which jobs are protected: those that say so in one of several places, or are of a partition or account that is named.

The job's comment comes first. Of a batch job whose comment says nothing to us what an administrator wrote into its
AdminComment counts, its Extra, `REKINDLE_PROTECT` of its submission's environment, and `--comment` of its submission's
line (25.11 and newer show it) and of its script, which are there when another tool has overwritten the comment; then
the settings. `norekindle` in any of these is the way out, and precedes the others.

Which attempt of which Job a submission of ours is, is never taken from an environment: what a job submits inherits it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from rekindle.sbatch.options import of_script
from rekindle.slurm_agent.base.ports import SlurmError, SlurmUnavailable
from rekindle.slurm_agent.copies.capture import StateFiles
from rekindle.slurm_agent.copies.reads import CopyReads
from rekindle.slurm_agent.files.time_spent import TimeSpent
from rekindle.slurm_agent.reading import comment, text
from rekindle.slurm_agent.reading.comment import SHOWN, is_out_word, says_out
from rekindle.slurm_agent.reading.jobs import ENDED, Job
from rekindle.slurm_agent.reading.line import of_line
from rekindle.slurm_agent.reading.run import TooMuch

if TYPE_CHECKING:
    from rekindle.slurm_agent.privileged.remote import RemoteState

ENV_PROTECT: Final = "REKINDLE_PROTECT"
# What an administrator or another tool writes later is seen by then; what a job's own comment says, at the next look.
AGAIN: Final = timedelta(minutes=5)
USER_S: Final = 1.0  # what the environments and scripts of one user may cost in one look; they may be megabytes each
MAX_SCRIPT_CHARS: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """`words`: of its environment and script, which do not change. `later`: what `SHOWN` say, which may change."""

    asked: comment.Comment | None
    is_out: bool
    later: comment.Comment | None = None
    words: tuple[str, ...] | None = None


_NOTHING: Final = _Found(asked=None, is_out=False)


class Joining:
    """Read by two threads, written by the look's alone. What was found of a job is kept while it is there.

    partitions, accounts: whose batch jobs are protected, under the policy "default".
    """

    def __init__(
        self, reads: CopyReads, *, partitions: frozenset[str] = frozenset(), accounts: frozenset[str] = frozenset()
    ) -> None:
        self._reads = reads
        self._partitions, self._accounts = partitions, accounts
        self._found: dict[tuple[int, datetime | None], _Found] = {}
        self._asked_at: datetime | None = None
        self._changed: set[tuple[int, datetime | None]] = set()

    def ask_again(self, job: Job) -> None:
        """Its record says otherwise than when it was read: it is read at the next look."""
        self._changed.add(_key(job))

    def asked(self, job: Job) -> comment.Comment | None:
        """What the job says, wherever it says it; None where it is not to be protected."""
        if self.is_out(job):
            return None
        return comment.parse(job.comment) or self._found.get(_key(job), _NOTHING).asked

    def asked_later(self, job: Job) -> comment.Comment | None:
        """What an administrator or a plug-in has written where the job's comment says nothing to us; mostly nothing."""
        return self._found.get(_key(job), _NOTHING).later

    def is_out(self, job: Job) -> bool:
        """Its owner, or an administrator, wants no protection for it."""
        return is_out_word(job.comment) or self._found.get(_key(job), _NOTHING).is_out

    def learn(
        self, jobs: Iterable[Job], state: StateFiles | RemoteState, now: datetime
    ) -> Mapping[int, Mapping[str, str]]:
        """Look at the jobs that are new, and at all again from time to time: one command where there are some.

        Returns the details that were read by the way. Raises: SlurmUnavailable.
        """
        is_due = self._asked_at is None or not timedelta(0) <= now - self._asked_at < AGAIN
        alive = {_key(job): job for job in jobs if _may_join(job)}
        kept = {key: found for key, found in self._found.items() if key in alive}
        changed = set(self._changed)
        self._changed -= changed
        again = alive.keys() if is_due else changed
        wanted = [job for key, job in alive.items() if key not in kept or key in again or self._says_less(job)]
        details = self._details(wanted)
        if is_due:
            self._asked_at = now
        spent = TimeSpent(USER_S)
        for job in wanted:
            shown, before = details.get(job.job), kept.get(_key(job))
            if shown is not None or before is None:  # else nothing new could be read of it
                found = self._looked_at(job, shown or {}, before, state, spent)
                kept |= {_key(job): found} if found is not None else {}
        self._found = kept
        return details

    def _looked_at(
        self,
        job: Job,
        shown: Mapping[str, str],
        before: _Found | None,
        state: StateFiles | RemoteState,
        spent: TimeSpent,
    ) -> _Found | None:
        """What a job says; None where its user's time is over: then it is asked at the next look."""
        if comment.parse(job.comment) is not None:
            return _Found(asked=None, is_out=says_out(shown))
        if spent.is_over(job.user):
            return None
        with spent.by(job.user):
            words = (before.words if before else None) or _own_words(job, state)
            return self._of(job, shown, words)

    def _says_less(self, job: Job) -> bool:
        """Its comment asks for nothing any more, and the other places were not read while it did."""
        found = self._found.get(_key(job))
        return found is not None and found.words is None and comment.parse(job.comment) is None

    def _details(self, jobs: list[Job]) -> Mapping[int, Mapping[str, str]]:
        if not jobs:
            return {}
        try:
            return self._reads.details(jobs)
        except TooMuch:
            return {}  # the other places count all the same
        except SlurmUnavailable:
            raise
        except SlurmError:
            return {}

    def _of(self, job: Job, shown: Mapping[str, str], own: tuple[str, ...]) -> _Found:
        # Joined by blanks: what stands behind one may be the script's own already.
        line = (of_line(shown.get("SubmitLine") or "", (job.command,)).get("comment") or "").partition(" ")[0]
        shows = [text.value(shown.get(name)) for name in SHOWN]
        words = [*shows, line, *own]
        if any(is_out_word(word) for word in words):
            return _Found(asked=None, is_out=True, words=own)
        asked, later = (next(filter(None, map(comment.parse, found)), None) for found in (words, shows))
        return _Found(asked=asked or self._by_rule(job, shown), is_out=False, later=later, words=own)

    def _by_rule(self, job: Job, shown: Mapping[str, str]) -> comment.Comment | None:
        is_named = job.partition in self._partitions or text.value(shown.get("Account")) in self._accounts
        return comment.Comment() if is_named else None


def _own_words(job: Job, state: StateFiles | RemoteState) -> tuple[str, ...]:
    """What its submission's environment and its script say; the options of a script stand at its beginning."""
    environment = state.variables(job.kept_as, (ENV_PROTECT,))
    script = (state.script(job.kept_as) or "")[:MAX_SCRIPT_CHARS]
    return environment.get(ENV_PROTECT, "").strip(), of_script(script).get("comment") or ""


def _may_join(job: Job) -> bool:
    """Whether it is a batch job of its own that is not over."""
    return job.is_batch and not job.is_lump and job.state not in ENDED


def _key(job: Job) -> tuple[int, datetime | None]:
    """A requeued job has another time of submission, and is asked again."""
    return job.job, job.submitted
