"""The Lambda functions of the stack, as data: what starts each one decides how its failures are handled.

Memory and time-outs are Chalice's business and stand in `.chalice/config.json`; patterns are the ingest's and stand
in `chalicelib/ingest/detail_types.py`. Here is only what the decorators cannot say (style guide, Chalice gaps).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

INFRA: Final = Path(__file__).resolve().parent
RUNTIME: Final = "python3.13"  # Chalice would write the packing interpreter's; the bundle is pure Python
ALIAS: Final = "live"  # of the recovery; executions are started through it alone


class Trigger(StrEnum):
    """What invokes a function."""

    DEFAULT_BUS = "default bus"  # events of AWS services
    CUSTOM_BUS = "custom bus"  # what monitors and agents push
    SCHEDULE = "schedule"
    LOGS = "logs subscription"
    DURABLE = "durable"  # started by the other functions, by alias, under the Incident's name
    HTTP = "http"
    QUEUE = "queue"  # messages of the queue `deliveries`


# An event that cannot be delivered is kept trying for a day and then lands in the failures queue.
# Source: EventBridge user guide, eb-rule-retry-policy: at most 185 attempts and 86,400 s.
DELIVERY_ATTEMPTS: Final = 185
DELIVERY_AGE_S: Final = 86_400

# Lambda's own retries of an asynchronous invocation. Source: Lambda guide, invocation-async: at most 2 attempts, 6 h.
INVOKE_RETRIES: Final = 2
INVOKE_AGE_S: Final = 21_600
SHORTEST_AGE_S: Final = 60  # the least that both services accept


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """One function: its name in app.py and what starts it."""

    name: str
    trigger: Trigger

    @property
    def logical_id(self) -> str:
        """The id that Chalice gives it in the template; its role and log group have the same with a suffix."""
        return "APIHandler" if self.trigger is Trigger.HTTP else self.base_id

    @property
    def base_id(self) -> str:
        """Where role and log group take their ids from. Chalice renames the API's function alone, not these two."""
        return "".join(part[:1].upper() + part[1:] for part in self.name.split("_"))

    @property
    def event_id(self) -> str | None:
        """The id of the SAM event that Chalice's decorator makes, None without one."""
        match self.trigger:
            case Trigger.DEFAULT_BUS | Trigger.CUSTOM_BUS | Trigger.SCHEDULE:
                return f"{self.base_id}Event"
            case Trigger.QUEUE:
                return f"{self.base_id}SqsEventSource"
            case _:
                return None

    @property
    def can_be_flooded(self) -> bool:
        """True where what starts it comes from training roles, agents' roles or training logs: other people's hands."""
        return self.name in {"monitor_event", "agent_event", "log_batch"}

    @property
    def is_asynchronous(self) -> bool:
        """Whether the caller does not wait for the result, so that Lambda itself must keep a failed event."""
        return self.trigger not in {Trigger.HTTP, Trigger.QUEUE}

    @property
    def invoke_retries(self) -> int:
        """How often Lambda tries again.

        The next sweep comes in a minute anyway; a failed recovery is taken over by the sweep under a new generation,
        and a blind retry beside that would race with it.
        """
        return 0 if self.trigger in {Trigger.SCHEDULE, Trigger.DURABLE} else INVOKE_RETRIES

    @property
    def invoke_age_s(self) -> int:
        """How long Lambda keeps an invocation that it cannot run."""
        return SHORTEST_AGE_S if self.trigger is Trigger.SCHEDULE else INVOKE_AGE_S


FUNCTIONS: Final = (
    Function(name="hyperpod_event", trigger=Trigger.DEFAULT_BUS),
    Function(name="training_job_event", trigger=Trigger.DEFAULT_BUS),
    Function(name="alarm_event", trigger=Trigger.DEFAULT_BUS),
    Function(name="health_event", trigger=Trigger.DEFAULT_BUS),
    Function(name="ec2_event", trigger=Trigger.DEFAULT_BUS),
    Function(name="monitor_event", trigger=Trigger.CUSTOM_BUS),
    Function(name="agent_event", trigger=Trigger.CUSTOM_BUS),
    Function(name="notice_event", trigger=Trigger.CUSTOM_BUS),
    Function(name="deliver", trigger=Trigger.QUEUE),
    Function(name="log_batch", trigger=Trigger.LOGS),
    Function(name="sweep", trigger=Trigger.SCHEDULE),
    Function(name="recover", trigger=Trigger.DURABLE),
    Function(name="api_handler", trigger=Trigger.HTTP),
)
