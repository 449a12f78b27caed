"""An event that cannot be read: kept once, retried by nobody, and fed in again by order."""

from __future__ import annotations

import json

from localcloud.worlds.recoveries import Script, world
from tests.ingest import golden


def test_a_malformed_event_is_kept_with_the_field_that_was_wrong_and_can_be_fed_in_again() -> None:
    with world() as w:
        w.submit(scripts=(Script(),))
        name = next(name for name in golden.malformed() if name.startswith("malformed/sagemaker_training_job"))
        event = json.loads((golden.EVENTS / name).read_text())
        outcomes = w.cloud.invoke("training_job_event", event)
        assert [outcome["what"] for outcome in outcomes] == ["quarantined"]
        (kept,) = w.service.quarantine.peek(limit=5)
        assert json.loads(kept["raw"]) == event
        assert kept["function"] == "training_job_event"
        assert kept["field"] in outcomes[0]["reason"]
        assert w.service.ingress.redrive(limit=10) == {"taken": 1, "quarantined_again": 1}
        (again,) = w.service.quarantine.peek(limit=5)
        assert (again["raw"], again["field"]) == (kept["raw"], kept["field"])
        assert w.incidents() == []
