"""The samples of a run that goes on with other ranks, another batch or other windows: each once, and none left out."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")

from rekindle.integrations.sampler import ResumableSampler
from rekindle.monitor.saving.saved import samples_at
from rekindle.protocol.launch_orders import ResumePlan, SkipWindow

SAMPLES = 1280


def ranks(world_size: int, plan: ResumePlan | None, *, batch_size: int = 4, **more: Any) -> list[ResumableSampler]:
    data = range(SAMPLES)
    return [
        ResumableSampler(data, batch_size=batch_size, rank=rank, world_size=world_size, resume=plan, **more)
        for rank in range(world_size)
    ]


def of_step(samplers: list[ResumableSampler], step: int) -> list[int]:
    return [
        number for sampler in samplers for part in range(sampler.accumulate) for number in sampler.batch(step, part)
    ]


def used(samplers: list[ResumableSampler], last: int) -> list[int]:
    """By all ranks up to a step, as a loop reads them."""
    found: list[int] = []
    for sampler in samplers:
        for _, batch in sampler.steps(_Loader(sampler), last):
            found += batch
    return found


class _Loader:
    def __init__(self, sampler: ResumableSampler) -> None:
        self._sampler = sampler

    def __iter__(self) -> Any:
        return iter(self._sampler)


def plan_after(step: int, sampler: ResumableSampler, *, says_samples: bool = True, **more: Any) -> ResumePlan:
    """As a start makes it of the manifest."""
    samples, per_step = samples_at(step)
    assert samples == sampler.used(step)
    known = {"samples": samples, "samples_per_step": per_step} if says_samples else {}
    return ResumePlan(step=step, world_size=sampler.world_size, **known, **more)


@pytest.mark.parametrize("says_samples", [True, False], ids=["samples", "ranks alone"])
def test_half_of_the_ranks_go_on_after_the_last_sample(says_samples: bool) -> None:
    first = ranks(4, ResumePlan())
    before = used(first, 40)
    later = ranks(2, plan_after(40, first[0], says_samples=says_samples))
    after = used(later, 120)
    assert sorted(before + after) == list(range(SAMPLES)), "the epoch is read to its end, each sample once"
    assert sorted(used(later, 280)) == list(range(SAMPLES)), "and so is the next"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_changes_at_each_start_every_sample_of_an_epoch_is_read_at_most_once(seed: int) -> None:
    chance = random.Random(seed)
    plan, step, seen, epoch_seen = ResumePlan(), 0, 0, list[int]()
    for _ in range(6):
        samplers = ranks(
            chance.choice((1, 2, 4, 8)), plan, batch_size=chance.choice((1, 4, 5)), accumulate=chance.choice((1, 3))
        )
        for _ in range(chance.randint(1, 25)):
            step += 1
            position = samplers[0].used(step)
            assert position is not None
            numbers = of_step(samplers, step)
            if (position - 1) // SAMPLES != (seen - 1) // SAMPLES or not seen:
                epoch_seen = []
            seen = position
            epoch_seen += numbers
            assert len(numbers) == samplers[0].used_by_step
            assert len(set(epoch_seen)) == len(epoch_seen), "none twice"
        plan = plan_after(step, samplers[-1])


def test_the_windows_of_the_run_before_leave_the_same_samples_out() -> None:
    first = ranks(4, ResumePlan())
    window = SkipWindow(from_step=51, to_step=61)
    bad = {number for step in range(51, 61) for number in of_step(first, step)}
    later = ranks(2, plan_after(40, first[0], skip=(window,)))
    after = used(later, 120)
    assert not bad & set(after)
    assert len(after) == SAMPLES - 40 * 16 - len(bad), "and no others"


def test_its_own_state_goes_on_with_other_ranks_and_refuses_another_order() -> None:
    first = ranks(4, ResumePlan())
    before = used(first, 40)
    state = first[0].state_dict()
    for saved in (state, {name: value for name, value in state.items() if name != "used"}):
        later = ranks(2, None)
        for sampler in later:
            sampler.load_state_dict(saved)
        assert sorted(before + used(later, 120)) == list(range(SAMPLES))
    with pytest.raises(ValueError, match="seed"):
        ranks(2, None, seed=7)[0].load_state_dict(state)
