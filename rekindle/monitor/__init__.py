"""Rekindle beside the training loop.

    import rekindle.monitor as rekindle

    mon = rekindle.start(save)               # save(step, kind) -> path; everything else comes from the environment
    if mon.resume_path: load(mon.resume_path)
    for step in range((mon.resume.step or 0) + 1, last_step + 1):
        if mon.should_skip(step): continue
        loss = train_step(step)
        mon.step(step, loss=loss)
        if mon.should_stop: break
    mon.finish()

`with rekindle.start(save) as mon:` finishes at its end. The names below are the whole public face; the modules beside
it are private.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from rekindle.detectors.kinds import LossKind
from rekindle.monitor.base.settings import process_environment
from rekindle.monitor.base.trouble import NotWatched
from rekindle.monitor.liveness.flight import switch_on
from rekindle.monitor.mail.boxes import Box
from rekindle.monitor.mail.exchange import Exchange, Ranks
from rekindle.monitor.saving.saved import LATER, SaveFunction, SaveResult
from rekindle.monitor.silent import Monitor
from rekindle.monitor.starting import start_in

__all__ = ["start", "Monitor", "Ranks", "SaveResult", "LATER", "Exchange", "NotWatched"]


def start(
    save: SaveFunction | None = None,
    *,
    mailbox: str | Box | None = None,
    job_id: str | None = None,
    ranks: Ranks | None = None,
    signals: Sequence[str] | None = None,
    loss_kind: str = LossKind.AUTO,
    on_event: Callable[[str, dict[str, Any]], object] | None = None,
    required: bool = False,
) -> Monitor:
    """A monitor for this process; a silent one where it is switched off or has nothing to watch.

    save: see `SaveFunction`; without one, emergency checkpoints are answered with "cannot".
    mailbox: `s3://bucket/prefix`, a directory, or a `Box`; default REKINDLE_MAILBOX.
    ranks: this rank and how it agrees with the others; the integrations set it. Default: as the launcher says.
    signals: "TERM" asks all ranks for a save and then sets `should_stop`; any other, such as "USR1", asks for a save.
    The handler that was there before is called as well. On Slurm USR1 is also taken where the script has no handler for
    it; with `()` none is.
    loss_kind: what the loss is (`rekindle.detectors.LossKind`): "td", "reward", "surrogate", "adversarial" and
    "unknown" are reported and never acted on, as a rise means little in them; "supervised" is judged; "auto" decides
    by the values.
    on_event: called with each event of this process ("Rekindle Non-Finite Loss", "Rekindle Stall", ...) and its fields,
    on a thread of the monitor's.
    required: for a run that must not go unwatched. Raises NotWatched instead of returning a silent monitor; without it
    nothing is raised.
    """
    monitor = start_in(
        process_environment(),
        save=save,
        mailbox=mailbox,
        job_id=job_id,
        ranks=ranks,
        signals=signals,
        loss_kind=loss_kind,
        on_event=on_event,
        required=required,
    )
    if not monitor.is_silent:
        switch_on(os.environ)
    return monitor
