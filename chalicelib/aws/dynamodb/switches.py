"""The switches and the breaker in DynamoDB: one item that every observation reads, one row per Incident that acts.

docs/storage.md lists the items.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final

from chalicelib.aws.dynamodb import items
from chalicelib.aws.dynamodb.items import Expression, Item
from chalicelib.domain.model.switches import Breaker, ShadowScope, Switches

SWITCHES: Final = items.key("CONTROL", "PAUSE")
_ACTS: Final = "ACTS"
_KEPT: Final = timedelta(days=2)  # longer than any window that a policy may count over
_SETS: Final = {ShadowScope.JOB: "shadow_jobs", ShadowScope.CLUSTER: "shadow_clusters"}


class DynamoControls:
    """The part of ports.JobRegistry that is about no single Job; `client` is a boto3 DynamoDB client."""

    def __init__(self, client: Any, *, table: str) -> None:
        self._client = client
        self._table = table

    def switches(self) -> Switches:
        return switches_of(items.get(self._client, self._table, SWITCHES) or {})

    def is_paused(self) -> bool:
        return self.switches().paused

    def set_paused(self, paused: bool, *, who: str, now: datetime, why: str = "") -> None:
        self._set(
            {
                "paused": items.flag(paused),
                "who": items.text(who),
                "at": items.text(now.isoformat()),
                "why": items.text(why),
            }
        )

    def set_shadow(self, scope: ShadowScope, name: str, on: bool, *, who: str, now: datetime) -> None:
        attributes = {"shadow_who": items.text(who), "shadow_at": items.text(now.isoformat())}
        if scope is ShadowScope.EVERYWHERE:
            self._set(attributes | {"shadow_everywhere": items.flag(on)})
            return
        expression = Expression()
        sets = ", ".join(expression.set(attribute, value) for attribute, value in attributes.items())
        change = f"{expression.name(_SETS[scope])} {expression.value('name', {'SS': [name]})}"
        self._update_switches(f"SET {sets} {'ADD' if on else 'DELETE'} {change}", expression)

    def _set(self, values: Item) -> None:
        expression = Expression()
        sets = ", ".join(expression.set(attribute, value) for attribute, value in values.items())
        self._update_switches(f"SET {sets}", expression)

    # --- the breaker ---

    def will_act(self, incident_id: str, *, now: datetime, since: datetime, group: str = "") -> int:
        """See ports.JobRegistry. One write, then one consistent query: every earlier writer is counted."""
        acts = f"{_ACTS}#{group}" if group else _ACTS
        row = items.key(acts, f"{now.isoformat()}#{incident_id}")
        row |= {items.TTL_ATTRIBUTE: items.number(int((now + _KEPT).timestamp()))}
        items.retry_in_transaction(self._client.put_item, TableName=self._table, Item=row)
        found = items.query(
            self._client,
            self._table,
            KeyConditionExpression="pk = :p AND sk >= :since",
            ExpressionAttributeValues={":p": items.text(acts), ":since": items.text(since.isoformat())},
            ProjectionExpression="sk",
            ConsistentRead=True,
        )
        return len({row["sk"]["S"].partition("#")[2] for row in found})

    def count_active(self) -> int:
        request = items.index_query(items.JOBS_ACTIVE)
        return sum(1 for _ in items.query(self._client, self._table, ProjectionExpression="pk", **request))

    def trip(self, incident_id: str, *, now: datetime, text: str) -> None:
        expression = Expression()
        sets = [
            expression.set("tripped_at", items.text(now.isoformat())),
            expression.set("tripped_by", items.text(incident_id)),
            expression.set("tripped_said", items.text(text)),
        ]
        # The first to trip it is the one that is recorded.
        condition = "attribute_not_exists(#tripped_at) OR #tripped_at <= lifted_at"
        self._update_switches(f"SET {', '.join(sets)} REMOVE breaker_paged", expression, condition)

    def lift(self, *, who: str, now: datetime) -> None:
        self._set({"lifted_at": items.text(now.isoformat()), "lifted_by": items.text(who)})

    def pages_for_breaker(self, incident_id: str) -> bool:
        expression = Expression()
        sets = expression.set("breaker_paged", items.text(incident_id))
        condition = "attribute_not_exists(#breaker_paged) OR #breaker_paged = :breaker_paged"
        return self._update_switches(f"SET {sets}", expression, condition)

    def release_breaker_page(self, incident_id: str) -> None:
        expression = Expression()
        paged = expression.value("breaker_paged", items.text(incident_id))
        name = expression.name("breaker_paged")
        self._update_switches(f"REMOVE {name}", expression, f"{name} = {paged}")

    def _update_switches(self, change: str, expression: Expression, condition: str = "") -> bool:
        """Change the switches' item, where `condition` holds; whether it did."""
        return items.update(self._client, self._table, SWITCHES, change, expression, condition=condition)


def _names(stored: Item, attribute: str) -> tuple[str, ...]:
    return tuple(sorted(stored.get(attribute, {}).get("SS", ())))


def switches_of(stored: Item) -> Switches:
    """The switches in their record; an empty one: none was ever set."""
    return Switches(
        paused=items.read_flag(stored, "paused"),
        paused_by=items.read_text(stored, "who") or "",
        paused_at=items.read_at(stored, "at"),
        paused_why=items.read_text(stored, "why") or "",
        everywhere=items.read_flag(stored, "shadow_everywhere"),
        jobs=_names(stored, "shadow_jobs"),
        clusters=_names(stored, "shadow_clusters"),
        shadow_by=items.read_text(stored, "shadow_who") or "",
        shadow_at=items.read_at(stored, "shadow_at"),
        breaker=Breaker(
            tripped_at=items.read_at(stored, "tripped_at"),
            incident_id=items.read_text(stored, "tripped_by") or "",
            text=items.read_text(stored, "tripped_said") or "",
            lifted_at=items.read_at(stored, "lifted_at"),
            lifted_by=items.read_text(stored, "lifted_by") or "",
        ),
    )
