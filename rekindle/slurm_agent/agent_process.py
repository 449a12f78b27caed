"""What the agent does in each of its modes, after its settings were read; see `__main__`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import threading
from dataclasses import dataclass, field
from typing import Final

from botocore.exceptions import BotoCoreError

from rekindle.protocol.cluster.lease import MAX_TERM_S
from rekindle.slurm_agent.base.aws import AwsError, Clients, make_clients, text_of
from rekindle.slurm_agent.base.clock import AwsClock
from rekindle.slurm_agent.base.lock import LockTaken, acquire
from rekindle.slurm_agent.base.ports import NotHolder
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.base.store import Store
from rekindle.slurm_agent.check import check
from rekindle.slurm_agent.leases.lease import Lease
from rekindle.slurm_agent.leaving import give_back, remove_state
from rekindle.slurm_agent.privileged.remote import Channels
from rekindle.slurm_agent.process import DATABASE, LAST_NEWS_S, Agent
from rekindle.slurm_agent.slurm.build import build
from rekindle.slurm_agent.takeover import STOPPED, make_lease, others_on, stopped_for, wait_for_lease

OK: Final = 0
NOT_OK: Final = 1
BAD_SETTINGS: Final = 2
SECOND: Final = 3
# From the signal to the end of this process, whatever hangs. What is half-way is settled at the next start, as after a
# kill; below the unit's TimeoutStopSec.
STOP_S: Final = 9.0

log = logging.getLogger("rekindle.slurm_agent")


def run(settings: Settings, options: argparse.Namespace, channels: Channels | None) -> int:
    """channels: to root's helper, where there is one."""
    try:
        region = settings.region
        if channels is not None and region is None:
            region = str(channels.credentials()["region"]) or None
        clients = make_clients(region, None if channels is None else channels.credentials)
    except BotoCoreError as err:  # no region, or a profile that is not there
        print(f"rekindle-agent: AWS_REGION (--region): {err}", file=sys.stderr)
        return BAD_SETTINGS
    if options.check:
        return OK if check(settings, clients, build, print, channels) else NOT_OK
    process = _Process(settings=settings, clients=clients, clock=_clock(clients), channels=channels)
    if options.stop_all:
        return process.stop_all()
    if options.give_back and options.within is not None:
        _end_within(options.within, process.rest)
    if options.give_back and options.dry_run:  # beside an agent that runs
        return process.give_back(process.agent(None, None), is_dry=True)
    return process.alone_here(options)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Process:
    """One process of the agent's. `channels`: to root's helper, where there is one. `rest`: what is not given back
    yet."""

    settings: Settings
    clients: Clients
    clock: AwsClock
    channels: Channels | None
    rest: list[str] = field(default_factory=lambda: ["what is held is not known: Slurm does not answer"])

    def alone_here(self, options: argparse.Namespace) -> int:
        """What only one process of a state directory may do."""
        stop = _stopped_by_signals()
        try:
            guard = self._locked(options.lock_wait, stop)
        except LockTaken as err:
            print(f"rekindle-agent: {err}", file=sys.stderr)
            return OK if stop.is_set() else SECOND
        except OSError as err:
            print(f"rekindle-agent: --state-dir {self.settings.state_dir}: {err}", file=sys.stderr)
            return BAD_SETTINGS
        if options.give_back:
            return self._leave(guard, stop)
        if options.remove_state:
            return self._remove_state()
        return self._live(guard, stop, is_once=options.once)

    def _locked(self, wait_s: float, stop: threading.Event) -> int | None:
        """See `lock.acquire`. None: root's helper holds it. Raises: LockTaken, OSError."""
        if self.channels is None:
            return acquire(self.settings.state_dir, wait_s=wait_s, stop=stop)
        self.channels.lock(wait_s=wait_s, stop=stop)
        return None

    def agent(self, guard: int | None, lease: Lease | None, *, is_leaving: bool = False) -> Agent:
        return Agent(
            settings=self.settings,
            clients=self.clients,
            clock=self.clock,
            build=build,
            guard_fd=guard,
            lease=lease,
            is_leaving=is_leaving,
            channels=self.channels,
        )

    def stop_all(self) -> int:
        store = Store(self.settings.state_dir / DATABASE, clock=self.clock)
        try:
            (self.settings.state_dir / STOPPED).touch(mode=0o600)
            was = make_lease(self.settings, self.clients, self.clock, store).stop_all()
        except (*AwsError, OSError, NotHolder) as err:
            print(f"rekindle-agent: the agents on other head nodes could not be stopped: {text_of('lease.json', err)}")
            return NOT_OK
        by = f"; {was.holder} on {was.host} held the lease" if was is not None and was.term_s else ""
        print(f"no agent of {self.settings.cluster} acts now{by}")
        return OK

    def _leave(self, guard: int | None, stop: threading.Event) -> int:
        """What is held is given back only where no other agent continues with it: none stands by, or all were
        stopped."""
        lease = None
        try:
            left_s = stopped_for(self.settings, self.clients, self.clock)
            others = others_on(self.settings, self.clients, self.clock) if left_s is None else []
        except AwsError as err:
            print(f"LEFT     it is not known whether another agent continues: {text_of('lease.json', err)}")
            return NOT_OK
        if others:
            print(f"note     {', '.join(others)} continues with what is held: nothing is given back")
            return OK
        if left_s is None:
            lease = wait_for_lease(self.settings, self.clients, self.clock, stop, is_once=True, ends_stop=True)
        if left_s or (left_s is None and lease is None):
            print(f"LEFT     an agent of another head node may still act: try again in {left_s or MAX_TERM_S:.0f} s")
            return NOT_OK
        code = self.give_back(self.agent(guard, lease, is_leaving=True), is_dry=False)
        if lease is not None:
            lease.give_back()
        return code

    def give_back(self, agent: Agent, *, is_dry: bool) -> int:
        if not is_dry:
            agent.watch.run_once()  # what is known of followed jobs is read back where the state was lost
        is_all = give_back(agent.parts.slurm, agent.journal, print, is_dry=is_dry, rest=self.rest)
        if not is_dry:
            agent.watch.run_once()
            agent.publisher.flush(LAST_NEWS_S)  # the cluster state shows how it was left
            agent.store.settle()
        return OK if is_all else NOT_OK

    def _remove_state(self) -> int:
        """Where an agent of another head node is there, all of it stays."""
        try:
            if others := others_on(self.settings, self.clients, self.clock):
                print(f"note     {', '.join(others)} is there still: what is kept of the cluster stays")
                return OK
        except AwsError as err:
            print(f"LEFT     it is not known whether another agent is there: {text_of('lease.json', err)}")
            return NOT_OK
        kept = self.agent(None, None).parts.kept
        return OK if remove_state(self.clients.s3, self.settings.bucket, self.settings.cluster, kept, print) else NOT_OK

    def _live(self, guard: int | None, stop: threading.Event, *, is_once: bool) -> int:
        while not stop.is_set():
            lease = wait_for_lease(self.settings, self.clients, self.clock, stop, is_once=is_once)
            if lease is None and not is_once:
                continue
            if lease is None:
                print("another agent holds the lease of this cluster", file=sys.stderr)
                return OK
            agent = self.agent(guard, lease)
            if is_once:
                lines = agent.once()
                for line in lines:
                    print(line, file=sys.stderr)
                return NOT_OK if lines else OK
            try:
                agent.run(stop)
            except RuntimeError:
                log.exception("the agent cannot continue")
                return NOT_OK
        return OK


def _stopped_by_signals() -> threading.Event:
    """Set by SIGTERM and SIGINT, which end the process after `STOP_S` at the latest."""
    stop = threading.Event()

    def end(*_: object) -> None:
        if not stop.is_set():
            stop.set()
            last = threading.Timer(STOP_S, os._exit, (OK,))
            last.daemon = True
            last.start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    return stop


def _clock(clients: Clients) -> AwsClock:
    clock = AwsClock()
    for client in (clients.sqs, clients.s3, clients.events, clients.lease):
        clock.follow(client)
    return clock


def _end_within(seconds: float, rest: list[str]) -> None:
    """End the process then, whatever hangs, and say what is left by then: `rest`. What a command still does is done."""

    def end() -> None:
        for name in rest:
            print(f"LEFT     {name}: not done within {seconds:.0f} s. Run it again", flush=True)
        os._exit(NOT_OK if rest else OK)

    last = threading.Timer(seconds, end)
    last.daemon = True
    last.start()
