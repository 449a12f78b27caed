"""The lease of a cluster: of the agents on its head nodes only the one that holds it acts. Why so: ADR 0113.

What makes it safe, whatever any host's clock says:

- The holder acts until `term_s` after it *sent* its last successful renewal, less a margin, by its own clock's
  durations; who takes over waits until `term_s` after the store *received* it, by the store's dates, or for as long by
  its own clock since it first saw that renewal.
- Every write names the ETag that it replaces. So of two that try one wins, and an order that is begun is written into
  the lease first: a former holder, however long it was paused, begins nothing after another has taken over.
- A term is shortened here before a shorter one is sent: it counts from then on, whether or not the answer arrives.

The term of an agent that knows of no other is longer, so that it continues while S3 is away for a while. Another one
that comes waits that long, or until the holder has seen it and has shortened its term.
"""

from __future__ import annotations

import logging
import threading
import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from rekindle.compat import StrEnum
from rekindle.protocol.cluster.lease import (
    MAX_BEGUN,
    MAX_EPOCH,
    MAX_TERM_S,
    BegunOrder,
    LeaseDoc,
    lease_key,
    standby_key,
)
from rekindle.slurm_agent.base.aws import AwsError, code_of, is_away, text_of
from rekindle.slurm_agent.base.clock import Clock
from rekindle.slurm_agent.base.ports import NotHolder
from rekindle.slurm_agent.leases.store import (
    AgentIdentity,
    StoredLease,
    leave_mark,
    read_lease,
    standing_by,
    take_mark_away,
)

log = logging.getLogger(__name__)

ALONE_TERMS: Final = 3  # how much longer the term of an agent is that knows of no other
SHARE_RENEWED: Final = 4  # of a term: three renewals may be lost
SHARE_MARGIN: Final = 6  # what was sent in the last moment of a term has so long to arrive
MAX_LOOK_S: Final = 5.0
# 412 where the condition does not hold, 409 where another conditional write of it is under way, 404 where what was to
# be replaced is gone. Source: S3 user guide, conditional-writes
_REFUSED: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "NoSuchKey", "412", "409", "404"})


class LeaseState(StrEnum):
    STANDBY = "standby"  # another holds it, or it cannot be told
    HELD = "held"
    LOST = "lost"  # another took it: this object never holds again


class Lease:
    """`run_once` is called by one thread; everything else by any.

    s3: a client with short time limits that tries once: what is tried again must read first. term_s: with another
    agent about.
    """

    def __init__(self, *, who: AgentIdentity, s3: Any, bucket: str, clock: Clock, term_s: float) -> None:
        self._who = who
        self._s3 = s3
        self._bucket = bucket
        self._key = lease_key(who.cluster)
        self._clock = clock
        self._term_s = term_s
        self._process = uuid.uuid4().hex
        self._lock = threading.RLock()
        self._standing = LeaseState.STANDBY
        self._ends: tuple[float, datetime] | None = None  # by this host's clocks; acting ends at the earlier one
        self._doc: LeaseDoc | None = None  # the last that is known to be there
        self._etag = ""
        self._seen: tuple[str, float] | None = None  # an ETag of another's, and since when it is seen
        self._unrecorded: tuple[BegunOrder, ...] = ()
        self._others: tuple[str, ...] = ()
        self._is_alone = False
        self._listed_at: float | None = None
        self._marked_at: float | None = None
        self.previous: LeaseDoc | None = None  # what was there when it was taken
        self.is_unsure = who.last_epoch > 0  # we held it, and it cannot be told whether another does by now
        self.is_only_ours = False  # take it only where no other agent has held it since: what is remembered holds then
        self.problem = ""

    # ---- what may be done now

    @property
    def standing(self) -> LeaseState:
        return self._standing

    @property
    def doc(self) -> LeaseDoc | None:
        """The lease as it was last seen or written."""
        return self._doc

    @property
    def others(self) -> tuple[str, ...]:
        """The agents that stand by, as of the last listing."""
        return self._others

    @property
    def epoch(self) -> int:
        """0 before it was held."""
        return self._doc.epoch if self._doc is not None and self._standing is LeaseState.HELD else 0

    def left_s(self) -> float:
        """For how long this agent may still act; 0: not now. Every side effect asks right before."""
        ends = self._ends
        if self._standing is not LeaseState.HELD or ends is None:
            return 0.0
        by_wall = (ends[1] - self._clock.wall()).total_seconds()  # a suspended machine's other clock may stand still
        return max(0.0, min(ends[0] - self._clock.monotonic(), by_wall))

    def begin(self, token: str, at: datetime) -> None:
        """Record for the next holder of the lease that an order is begun.

        Where S3 is away and no other agent is known it is written down with the next renewal instead.
        Raises: NotHolder, and then nothing may be run.
        """
        with self._lock:
            if self.left_s() <= 0 or self._doc is None:
                raise NotHolder("this agent does not hold the cluster's lease now")
            order = BegunOrder(token=token, at=at)
            if any(known.token == token for known in (*self._doc.begun, *self._unrecorded)):
                return
            try:
                is_written = self._renew((*self._unrecorded, order))
            except AwsError as err:
                if not self._is_alone or not is_away(err) or self.left_s() <= 0:
                    raise NotHolder(text_of("PutObject lease.json", err)) from err
                self._unrecorded = (*self._unrecorded, order)
                return
            if not is_written or self.left_s() <= 0:
                raise NotHolder("the cluster's lease is another agent's now")

    # ---- its life

    def run_once(self) -> float:
        """Take it if that may be, renew it if it is held. Seconds until the next pass. Raises nothing of S3's."""
        with self._lock:
            try:
                if self._standing is LeaseState.HELD:
                    self._list_others()
                    self._renew(self._unrecorded)
                elif self._standing is LeaseState.STANDBY:
                    self._try()
            except AwsError as err:
                self.problem = text_of("lease.json", err)
                if not is_away(err) and self._standing is LeaseState.STANDBY:
                    self.is_unsure = False  # a right is missing: that will not tell it by itself
            else:
                if self._standing is LeaseState.HELD:
                    self.problem = ""
            return self._rest_s()

    def give_back(self) -> None:
        """At the end of this agent: the next takes over at once. Raises nothing of S3's."""
        with self._lock:
            doc, etag, was_held = self._doc, self._etag, self.left_s() > 0
            self._ends = None
            try:
                if was_held and doc is not None and self._standing is LeaseState.HELD:
                    begun = _last((*doc.begun, *self._unrecorded))
                    self._put(replace(doc, renewal=doc.renewal + 1, term_s=0.0, begun=begun), etag)
                take_mark_away(self._s3, self._bucket, self._who)
            except AwsError as err:
                log.warning("part=lease problem=%s", text_of("lease.json", err))
            self._standing = LeaseState.LOST

    def stop_all(self) -> LeaseDoc | None:
        """No agent of the cluster acts until `start_all`. The lease that was there. Raises: botocore's errors."""
        return self._mark(self._who.host)

    def start_all(self) -> None:
        """Takes back `stop_all`. Raises: botocore's errors."""
        self._mark("")

    def read(self) -> StoredLease | None:
        """What stands there; None: nothing. Raises: botocore's errors."""
        asked = self._clock.monotonic()
        found = read_lease(self._s3, self._bucket, self._who.cluster)
        if found is None:
            return None
        if self._seen is None or self._seen[0] != found.etag:
            self._seen = (found.etag, self._clock.monotonic())
        return replace(found, age_s=max(found.age_s, asked - self._seen[1]))

    # ---- parts

    def _try(self) -> None:
        found = self.read()
        self.is_unsure = False
        if self.is_only_ours and (found is None or found.doc is None):
            self._lose(found)
            return
        if found is None:
            self._take(None, etag=None)
            return
        doc = found.doc
        if doc is None:
            why = f"{self._key} is no lease ({found.why})"
            if found.age_s <= MAX_TERM_S:
                self._stand_by(f"{why}: it is replaced when it is {MAX_TERM_S:.0f} s old, or remove it")
                return
            log.error("part=lease problem=%s: replaced", why)
            self._take(None, etag=found.etag)
            return
        self._doc = doc
        if self.is_only_ours and not self.was_ours(doc):
            self._lose(found)
        elif doc.stopped_on:
            self._stand_by(f"all agents were stopped by an operator on {doc.stopped_on}")
        elif doc.term_s == 0 or self._is_our_own(doc) or found.age_s > doc.term_s:
            self._take(doc, etag=found.etag)
        else:
            self._stand_by("")

    def was_ours(self, doc: LeaseDoc) -> bool:
        """No other agent has held it since this one did."""
        return (doc.holder, doc.epoch) == (self._who.agent_id, self._who.last_epoch)

    def _is_our_own(self, doc: LeaseDoc) -> bool:
        """Held by a process before this one on the same start of this machine: the lock of the state directory says
        that it is gone, and its commands with it."""
        return (doc.holder, doc.boot) == (self._who.agent_id, self._who.boot) and bool(doc.boot)

    def _take(self, doc: LeaseDoc | None, *, etag: str | None) -> None:
        is_own = doc is not None and doc.holder == self._who.agent_id
        self._listed_at = None
        self._list_others()
        # Another that has held it until now may be there still, and has left no mark yet.
        self._is_alone = self._is_alone and (doc is None or is_own or doc.term_s == 0)
        made = LeaseDoc(
            cluster=self._who.cluster,
            holder=self._who.agent_id,
            host=self._who.host,
            process=self._process,
            boot=self._who.boot,
            epoch=min(MAX_EPOCH, (doc.epoch if doc is not None else 0) + 1),
            renewal=(doc.renewal if doc is not None else 0) + 1,
            term_s=self._term(),
            begun=_last(doc.begun if doc is not None else ()),
        )
        if self._put(made, etag):
            self.previous = doc
            self._standing = LeaseState.HELD
            self.problem = ""
            log.info("part=lease epoch=%d taken_from=%s", made.epoch, doc.holder if doc is not None else None)

    def _renew(self, begun: tuple[BegunOrder, ...]) -> bool:
        """False: not written; then it is lost, unless it has to be tried again. Raises: botocore's errors."""
        for _ in range(2):
            if self._doc is None:
                break
            made = replace(
                self._doc,
                renewal=self._doc.renewal + 1,
                term_s=self._term(),
                begun=_last((*self._doc.begun, *begun)),
            )
            if self._put(made, self._etag):
                self._unrecorded = ()
                return True
            there = self.read()
            if there is None or there.doc is None or there.doc.process != self._process or there.doc.stopped_on:
                self._lose(there)
                break
            # A renewal of ours whose answer was lost: it stands, and counts from when it was sent at the latest.
            self._doc, self._etag = there.doc, there.etag
        return False

    def _put(self, made: LeaseDoc, etag: str | None) -> bool:
        """True: it stands there. False: the condition did not hold. Raises: botocore's errors, not knowing which."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        allowed_s = made.term_s * (1 - 1 / SHARE_MARGIN)
        ends = (self._clock.monotonic() + allowed_s, self._clock.wall() + timedelta(seconds=allowed_s))
        if self._ends is not None:  # if it is shorter it counts now: it may stand there without our hearing of it
            self._ends = (min(self._ends[0], ends[0]), min(self._ends[1], ends[1]))
        try:
            answer = self._s3.put_object(
                Bucket=self._bucket, Key=self._key, Body=made.to_json(), ContentType="application/json", **condition
            )
        except AwsError as err:
            if code_of(err) in _REFUSED:
                return False
            raise
        self._doc, self._etag, self._ends = made, str(answer["ETag"]), ends
        return True

    def _lose(self, there: StoredLease | None) -> None:
        self._standing, self._ends = LeaseState.LOST, None
        if there is None:
            why = f"{self._key} is gone"
        elif there.doc is None:
            why = f"{self._key} is no lease ({there.why})"
        elif there.doc.stopped_on:
            why = f"all agents were stopped by an operator on {there.doc.stopped_on}"
        else:
            why = f"{there.doc.holder} on {there.doc.host} has taken the lease, epoch {there.doc.epoch}"
        self.problem = why
        log.warning("part=lease lost=%s", why)

    def _stand_by(self, problem: str) -> None:
        self.problem = problem
        now = self._clock.monotonic()
        if self._marked_at is not None and now - self._marked_at < self._term_s:
            return
        leave_mark(self._s3, self._bucket, self._who, at=self._clock.now(), lease=self._doc, problem=problem)
        self._marked_at = now

    def _list_others(self) -> None:
        """Once a term."""
        now = self._clock.monotonic()
        if self._listed_at is not None and now - self._listed_at < self._term_s:
            return
        own = standby_key(self._who.cluster, self._who.agent_id)
        try:
            found = standing_by(self._s3, self._bucket, self._who.cluster)
        except AwsError as err:
            self._is_alone = self._is_alone and is_away(err)  # what cannot be listed may be there
            return
        self._others = tuple(candidate for key, candidate in found if key != own)
        self._is_alone, self._listed_at = not self._others, now

    def _mark(self, stopped_on: str) -> LeaseDoc | None:
        for _ in range(10):
            found = self.read()
            doc = found.doc if found is not None else None
            if not stopped_on and (doc is None or not doc.stopped_on):
                return doc
            made = LeaseDoc(
                cluster=self._who.cluster,
                holder=doc.holder if doc is not None else self._who.agent_id,
                host=doc.host if doc is not None else self._who.host,
                process=self._process,
                boot="",
                epoch=doc.epoch if doc is not None else 1,
                renewal=(doc.renewal if doc is not None else 0) + 1,
                term_s=_left_by(found),
                begun=doc.begun if doc is not None else (),
                stopped_on=stopped_on,
            )
            if self._put(made, found.etag if found is not None else None):
                return doc
        raise NotHolder("lease.json is written by others all the time")

    def _term(self) -> float:
        return min(MAX_TERM_S, self._term_s * ALONE_TERMS) if self._is_alone else self._term_s

    def _rest_s(self) -> float:
        rest_s = self._term_s / SHARE_RENEWED
        return rest_s if self._standing is LeaseState.HELD and not self.problem else min(MAX_LOOK_S, rest_s)


def _last(begun: tuple[BegunOrder, ...]) -> tuple[BegunOrder, ...]:
    """Each once, by count and not by time: clocks of two hosts are not compared."""
    return tuple({order.token: order for order in begun}.values())[-MAX_BEGUN:]


def _left_by(found: StoredLease | None) -> float:
    """The term of a mark that takes the place of a lease: as long as its holder may act on."""
    if found is None:
        return 0.0
    term_s = found.doc.term_s if found.doc is not None else MAX_TERM_S
    return 0.0 if found.age_s > term_s else term_s
