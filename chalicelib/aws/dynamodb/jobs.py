"""Jobs and Attempts in DynamoDB; the switches are in controls.py.

docs/storage.md lists the items.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.items import Expression, Item
from chalicelib.aws.dynamodb.switches import SWITCHES, DynamoControls, switches_of
from chalicelib.aws.errors import AwsRefusal
from chalicelib.domain.model.errors import MalformedRecord, UnknownEntity, VersionConflict
from chalicelib.domain.model.job import Attempt, Job, NewestSave, WatchPlan
from chalicelib.ports.jobs import ObservationBasis

_LOG = logging.getLogger(__name__)

_KEYS_PER_PAGE: Final = 500  # bounds the sweep's memory: an unbounded page of keys holds some 8,000
_CANCELED = "TransactionCanceledException"


class DynamoJobRegistry(DynamoControls):
    """ports.JobRegistry over one table; `client` is a boto3 DynamoDB client."""

    def register(self, job: Job, attempt: Attempt) -> Job:
        """See ports.JobRegistry. An attempt that belongs to another Job already returns that Job."""
        try:
            items.retry_in_transaction(
                self._client.transact_write_items,
                expect=(_CANCELED,),
                TransactItems=[
                    self._put(job_item(job), only_new=True),
                    self._put(_attempt_item(attempt), only_new=False),
                    self._put(_name_item(attempt), only_new=True),
                ],
            )
        except AwsRefusal as refusal:
            there, _, named = items.reasons_of(refusal)
            if there is None and named:
                return self.get(named["job_id"]["S"])
            return self.get(job.job_id)
        return job

    def _put(self, item: Item, *, only_new: bool) -> Item:
        put: Item = {"TableName": self._table, "Item": item, "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        if only_new:
            put["ConditionExpression"] = "attribute_not_exists(pk)"
        return {"Put": put}

    def get(self, job_id: str) -> Job:
        stored = items.get(self._client, self._table, items.key(items.job_pk(job_id)))
        if stored is None:
            raise UnknownEntity(f"job {job_id!r} is not registered")
        return job_of(stored)

    def standing(self, job_id: str | None) -> ObservationBasis:
        """See ports.JobRegistry. One BatchGetItem."""
        if job_id is None:
            return ObservationBasis(switches=self.switches(), job=None)
        keys = [SWITCHES, items.key(items.job_pk(job_id))]
        found = {item["pk"]["S"]: item for item in items.get_many(self._client, self._table, keys)}
        stored = found.get(items.job_pk(job_id))
        if stored is None:
            raise UnknownEntity(f"job {job_id!r} is not registered")
        return ObservationBasis(switches=switches_of(found.get(SWITCHES["pk"]["S"], {})), job=job_of(stored))

    def known(self, job_ids: Iterable[str]) -> dict[str, Job]:
        wanted = [items.key(items.job_pk(job_id)) for job_id in dict.fromkeys(job_ids)]
        jobs = (job_of(stored) for stored in items.get_many(self._client, self._table, wanted))
        return {job.job_id: job for job in jobs}

    def job_of_attempt(self, attempt_name: str) -> str | None:
        stored = items.get(self._client, self._table, items.key(items.attempt_pk(attempt_name)))
        return None if stored is None else items.read_text(stored, "job_id")

    def add_attempt(self, job: Job, attempt: Attempt, *, now: datetime) -> Job:
        """See ports.JobRegistry. Raises UnknownEntity for a Job that is not registered."""
        expression = Expression()
        sets = [
            expression.set("current_attempt", items.text(attempt.name)),
            expression.set("attempt_number", items.number(attempt.number)),
            expression.set("attempt_started_at", items.text(attempt.submitted_at.isoformat())),
            expression.set("version", items.number(job.version + 1)),
            *_activity(expression, active=True),
        ]
        expression.values[":expected"] = items.number(job.version)
        point = {
            "Update": {
                "TableName": self._table,
                "Key": items.key(items.job_pk(job.job_id)),
                "UpdateExpression": f"SET {', '.join(sets)} REMOVE halted_by",
                "ConditionExpression": "#version = :expected AND #current_attempt <> :current_attempt",
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
                **expression.parts(),
            }
        }
        supersede = {
            "Update": {
                "TableName": self._table,
                "Key": items.key(items.job_pk(job.job_id), items.attempt_sk(job.attempt_number)),
                "UpdateExpression": "SET superseded_at = if_not_exists(superseded_at, :now)",
                "ExpressionAttributeValues": {":now": items.text(now.isoformat())},
            }
        }
        puts = [self._put(_attempt_item(attempt), only_new=False), self._put(_name_item(attempt), only_new=False)]
        # A resubmission under the same number (its first name was taken by another job) replaces the record itself.
        old = [] if attempt.number == job.attempt_number else [supersede]
        try:
            items.retry_in_transaction(
                self._client.transact_write_items, expect=(_CANCELED,), TransactItems=[point, *puts, *old]
            )
        except AwsRefusal as refusal:
            current = items.reasons_of(refusal)[0]
            if not current:
                raise UnknownEntity(f"job {job.job_id!r} is not registered") from refusal
            stored = job_of(current)
            if stored.current_attempt == attempt.name:
                return stored
            raise VersionConflict(
                f"{job.job_id} is at version {stored.version} with {stored.current_attempt}, not {job.version}"
            ) from refusal
        return replace(
            job,
            active=True,
            halted_by="",
            current_attempt=attempt.name,
            attempt_number=attempt.number,
            attempt_started_at=attempt.submitted_at,
            version=job.version + 1,
        )

    def update_attempt(self, attempt: Attempt) -> None:
        """See ports.JobRegistry: what is Unknown here does not wipe out what is known there. Raises UnknownEntity."""
        expression, attributes = Expression(), items.attributes(attempt)
        sets = [expression.set(name, attributes[name]) for name in attempt.known_progress()]
        if not sets:
            return
        place = items.key(items.job_pk(attempt.job_id), items.attempt_sk(attempt.number))
        condition = f"{expression.name('name')} = {expression.value('name', items.text(attempt.name))}"
        change = f"SET {', '.join(sets)}"
        if not items.update(self._client, self._table, place, change, expression, condition=condition):
            raise UnknownEntity(f"attempt {attempt.name!r} of job {attempt.job_id!r} is not registered")

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        rows = items.query(self._client, self._table, **items.query_prefix(items.job_pk(job_id), "ATTEMPT#"))
        return tuple(items.record_of(Attempt, row) for row in rows if "name" in row)

    def active(self, *, after: str = "") -> Iterator[Job]:
        """See ports.JobRegistry. Holds one page of keys and the Jobs of one batch, however many there are."""
        request = items.index_query(items.JOBS_ACTIVE) | {"Limit": _KEYS_PER_PAGE}
        if after:
            request["KeyConditionExpression"] += " AND gsi1sk > :after"
            request["ExpressionAttributeValues"] |= {":after": items.text(after)}
        rows = items.query(self._client, self._table, **request)
        while batch := list(islice(rows, items.BATCH)):
            for stored in items.get_many(self._client, self._table, items.keys_of(batch)):
                job = _readable(stored)
                if job is not None and job.active:  # the index lags behind
                    yield job

    def set_watch(self, job_id: str, watch: WatchPlan) -> None:
        expression = Expression()
        self._update(job_id, expression, [expression.set("watch", items.pack(watch.to_wire()))])

    def deactivate(self, job_id: str, *, ended_at: datetime, halted_by: str = "") -> None:
        expression = Expression()
        sets = [*_activity(expression, active=False), expression.set("ended_at", items.text(ended_at.isoformat()))]
        if halted_by:
            sets.append(expression.set("halted_by", items.text(halted_by)))
        self._update(job_id, expression, sets)

    def note_save(self, job_id: str, save: NewestSave) -> None:
        expression = Expression()
        self._update(job_id, expression, [expression.set("newest_save", items.pack(save.to_wire()))])

    def _update(self, job_id: str, expression: Expression, sets: list[str]) -> None:
        key, change = items.key(items.job_pk(job_id)), f"SET {', '.join(sets)}"
        if not items.update(self._client, self._table, key, change, expression, condition="attribute_exists(pk)"):
            raise UnknownEntity(f"job {job_id!r} is not registered")


def _activity(expression: Expression, *, active: bool) -> list[str]:
    """Whether the sweep looks after it, in the item and in the index."""
    return [
        expression.set("active", items.flag(active)),
        expression.set("gsi1pk", items.text(items.JOBS_ACTIVE if active else items.JOBS_ENDED)),
    ]


def job_item(job: Job) -> Item:
    """The Job's record, whole."""
    return (
        items.key(items.job_pk(job.job_id))
        | {
            "gsi1pk": items.text(items.JOBS_ACTIVE if job.active else items.JOBS_ENDED),
            "gsi1sk": items.text(job.job_id),
        }
        | items.attributes(job)
    )


def job_of(stored: Item) -> Job:
    """The Job in its record. What an earlier end left behind counts for nothing once a new attempt runs."""
    job: Job = items.record_of(Job, stored)
    return replace(job, ended_at=None) if job.active else job


def _readable(stored: Item) -> Job | None:
    """None for a record that is not a Job's: it must not keep the sweep from all the others."""
    try:
        return job_of(stored)
    except (KeyError, MalformedRecord) as err:
        _LOG.error("a Job's record cannot be read", extra={"pk": items.read_text(stored, "pk"), "error": repr(err)})
        return None


def _name_item(attempt: Attempt) -> Item:
    return items.key(items.attempt_pk(attempt.name)) | {
        "job_id": items.text(attempt.job_id),
        "number": items.number(attempt.number),
    }


def _attempt_item(attempt: Attempt) -> Item:
    place = items.key(items.job_pk(attempt.job_id), items.attempt_sk(attempt.number))
    return place | items.attributes(attempt)
