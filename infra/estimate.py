"""`rekindle stack estimate`: what a deployment costs, by the figures of infra/costs.py (docs/reference/costs.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from infra.costs import AS_OF, MONTH_S, REGION, Row, after_free_tier, idle, incident, job, packaged, total
from rekindle.monitor.base.settings import Config

NOT_COUNTED: Final = (
    "checkpoints in S3 (1 TB in S3 Standard is about 0.03 an hour), training itself, data transfer, taxes"
)
_LINK: Final = re.compile(r"\[([^\]]+)\]\([^)]+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """List prices in USD: of a month idle, of a month of one Job, of one Incident; and how many of the last two."""

    idle: tuple[Row, ...]
    job: tuple[Row, ...]
    incident: tuple[Row, ...]
    jobs: int
    incidents: int

    @property
    def idle_usd(self) -> float:
        """A month of a stack that protects nothing."""
        return total(list(self.idle))

    @property
    def idle_usd_after_free_tier(self) -> float:
        """The same in an account that uses nothing else."""
        return after_free_tier(list(self.idle))

    @property
    def job_usd(self) -> float:
        """A month of one Job that trains all the time, at most."""
        return total(list(self.job))

    @property
    def incident_usd(self) -> float:
        """One recovery. Its rows are fractions of a cent, so nothing is rounded."""
        return sum(row.usd for row in self.incident)

    @property
    def total_usd(self) -> float:
        """A month with these Jobs and Incidents."""
        return self.idle_usd + self.jobs * self.job_usd + self.incidents * self.incident_usd

    def to_json(self) -> dict[str, Any]:
        """For machines; the rows as docs/deploy.md has them."""
        parts = {"idle": self.idle, "job": self.job, "incident": self.incident}
        return {
            "currency": "USD",
            "prices_of": REGION,
            "prices_as_of": AS_OF,
            "month_hours": MONTH_S // 3600,
            "idle_usd_per_month": round(self.idle_usd, 2),
            "idle_usd_per_month_after_free_tier": round(self.idle_usd_after_free_tier, 2),
            "job_usd_per_month": round(self.job_usd, 2),
            "incident_usd": round(self.incident_usd, 6),
            "jobs": self.jobs,
            "incidents_per_month": self.incidents,
            "total_usd_per_month": round(self.total_usd, 2),
            "not_counted": NOT_COUNTED,
            "rows": {
                name: [
                    {
                        "what": plain(row.what),
                        "arithmetic": plain(row.arithmetic),
                        "usd": round(row.usd, 6),
                        "at_most": row.at_most,
                    }
                    for row in rows
                ]
                for name, rows in parts.items()
            },
        }


def estimate(*, jobs: int = 1, incidents: int = 1) -> Estimate:
    """For so many Jobs that train all month, and so many Incidents in it. Raises: PackagingError."""
    return of(*packaged(), jobs=jobs, incidents=incidents)


def of(template: dict[str, Any], config: dict[str, Any], *, jobs: int, incidents: int) -> Estimate:
    """The same of a template that is packaged already."""
    return Estimate(
        idle=tuple(idle(template, config)),
        job=tuple(job(Config())),
        incident=tuple(incident()),
        jobs=jobs,
        incidents=incidents,
    )


def lines(found: Estimate) -> list[str]:
    """The sum in a few lines."""
    rows = [
        ("idle", f"{found.idle_usd:.2f} a month", found.idle_usd),
        (
            _counted(found.jobs, "Job"),
            f"{found.job_usd:.2f} a month each, training all month",
            found.jobs * found.job_usd,
        ),
        (_counted(found.incidents, "Incident"), "less than 0.01 each", found.incidents * found.incident_usd),
        ("together", "a month", found.total_usd),
    ]
    width = max(len(what) for what, _, _ in rows)
    middle = max(len(each) for _, each, _ in rows)
    return [f"{what:<{width}}  {each:<{middle}}  {_usd(usd):>12}" for what, each, usd in rows]


def as_text(found: Estimate) -> str:
    """For a person: every figure with its arithmetic, then the sum."""
    parts = []
    for head, rows, digits in (
        ("A month idle", found.idle, 2),
        ("A month of one Job that trains all the time, without a fault", found.job, 2),
        ("One Incident", found.incident, 4),
    ):
        parts.append(head)
        parts += [
            f"  {'<= ' if row.at_most else ''}{row.usd:.{digits}f}".ljust(12)
            + f"{plain(row.what)}: {plain(row.arithmetic)}"
            for row in rows
        ]
        parts.append("")
    parts += lines(found)
    parts += ["", f"USD, list prices of {REGION} as known in {AS_OF}, without the free tier; ~ marks assumptions."]
    parts.append(
        f"The free tier leaves about {found.idle_usd_after_free_tier:.2f} of idle in an account that uses nothing else."
    )
    parts.append(f"Not counted: {NOT_COUNTED}.")
    return "\n".join(parts)


def plain(text: str) -> str:
    """A row's text without Markdown: a terminal has no links."""
    return _LINK.sub(r"docs/\1", text).replace("`", "")


def _counted(count: int, name: str) -> str:
    return f"{count:,} {name}{'' if count == 1 else 's'}"


def _usd(usd: float) -> str:
    return "< 0.01" if 0 < usd < 0.005 else f"{usd:,.2f}"
