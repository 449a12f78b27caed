"""Names and layouts that public programs leave: found, of the right step, one family, whole by its siblings."""

from __future__ import annotations

import pytest

from rekindle.checkpoints.discover import discover
from rekindle.checkpoints.families import of_one_run
from rekindle.checkpoints.found import Format, Found
from rekindle.checkpoints.names import is_one_file, read_name
from rekindle.checkpoints.twins import with_twins
from tests.checkpoints.made import dcp_metadata, layout, torch_archive

Files = dict[str, bytes]


def judged(files: Files) -> tuple[Found, ...]:
    sizes = {path: len(body) for path, body in files.items()}
    return of_one_run(with_twins(discover(sizes, lambda path, start, length: files[path][start : start + length])))


def usable(files: Files) -> list[tuple[int | None, str]]:
    return [(item.step, item.root) for item in judged(files) if item.is_complete]


def dcp(folder: str, *, shards: int = 2) -> Files:
    bodies = {f"__{n}_0.distcp": b"x" * (100 + n) for n in range(shards)}
    metadata = dcp_metadata({name: len(body) for name, body in bodies.items()})
    return {f"{folder}/{name}": body for name, body in {**bodies, ".metadata": metadata}.items()}


def full(step: int, **more: object) -> bytes:
    return torch_archive({"model": {}, "optimizer": {"param_groups": []}, **more, "n": step})


NEMO = "model_name=0--val_loss={loss}-step={step}-consumed_samples={samples}{end}"


def nemo(step: int, loss: str, end: str = "") -> Files:
    root = "checkpoints/" + NEMO.format(loss=loss, step=step, samples=f"{step * 8}.0", end=end)
    return dcp(f"{root}/weights") | {f"{root}/context/model.yaml": b"a: 1\n"}


def megatron(step: int, *ranks: str) -> Files:
    state = torch_archive({"args": {"tensor_model_parallel_size": 2}, "iteration": step})
    return {f"iter_{step:07d}/mp_rank_{rank}/model_optim_rng.pt": state for rank in ranks}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (nemo(99, "2.10") | nemo(199, "2.05", "-last"), [199, 99]),
        (megatron(300, "00", "01"), [300]),
        (megatron(300, "00"), []),
        (megatron(300, "00_000", "00_001", "01_000", "01_001"), [300]),
        (megatron(300, "00_000", "00_001", "01_000"), []),
        (dcp("step-100/weights"), [100]),
        ({f"step-{n}/checkpoint.pt": full(n) for n in (5, 6)}, [6, 5]),
        ({f"ep0-ba{n}-rank0.pt": full(n) for n in (100, 200)}, [200, 100]),
        ({"ckpt.pt": full(1, iter_num=2000)}, [2000]),
        ({"checkpoint_last.pt": full(1, optimizer_history=[{"num_updates": 70}])}, [70]),
        ({"gpt_snapshot.pt": full(1, global_step=8)}, [8]),
        ({"out/eval_loss=2.10-step=40.ckpt": full(1, global_step=40)}, [40]),
    ],
    ids=lambda value: "",
)
def test_what_public_programs_leave_is_found_with_its_step(files: Files, expected: list[int]) -> None:
    assert [step for step, _ in usable(files)] == expected


def test_a_megatron_rank_that_the_siblings_have_is_missing_where_no_arguments_tell_of_the_grid() -> None:
    bare = {
        f"iter_{step:07d}/mp_rank_{rank}/model_optim_rng.pt": full(step) for step in (300, 400) for rank in ["00", "01"]
    }
    del bare["iter_0000400/mp_rank_01/model_optim_rng.pt"]
    assert [step for step, _ in usable(bare)] == [300]


def nemo_1(step: int, *ranks: str, end: str = "") -> Files:
    name = f"megatron_gpt--val_loss=2.10-step={step}-consumed_samples={step * 8}.0{end}.ckpt"
    return {f"checkpoints/{rank}/{name}": full(step) for rank in ranks}


TENSOR = ("mp_rank_00", "mp_rank_01")
GRID = tuple(f"tp_rank_{tensor:02d}_pp_rank_{stage:03d}" for tensor in (0, 1) for stage in (0, 1))


@pytest.mark.parametrize("ranks", [TENSOR, GRID], ids=["tensor", "grid"])
def test_nemo_1_s_files_of_all_ranks_are_one_checkpoint(ranks: tuple[str, ...]) -> None:
    saved = nemo_1(99, *ranks) | nemo_1(199, *ranks) | nemo_1(199, *ranks, end="-last")
    assert [step for step, _ in usable(saved)] == [199, 199, 99]
    roots = {root for _, root in usable(saved)}
    assert not any("rank" in root for root in roots), "as NeMo itself is given it"
    for lost in ranks:
        cut = {path: body for path, body in saved.items() if f"{lost}/" not in path or "step=99" in path}
        assert [step for step, _ in usable(cut)] == [99], lost
    alone = nemo_1(99, *GRID[:-1])
    assert usable(alone) == [], "a corner of the grid has nothing at all"


def test_a_megatron_rank_without_a_file_that_the_others_have_is_told() -> None:
    files = megatron(300, "00", "01") | {"iter_0000300/mp_rank_00/distrib_optim.pt": full(1)}
    (item,) = judged(files)
    assert item.format is Format.MEGATRON
    assert item.problems == ("mp_rank_01/distrib_optim.pt is missing",)


@pytest.mark.parametrize("folder", ["best-7b", "eval-every-1k", "ema-study/best", "2026-11-20/best-7b"])
def test_the_folder_of_a_whole_run_does_not_exclude_it(folder: str) -> None:
    files = {f"{folder}/step-{n}.pt": full(n) for n in (10, 20)}
    assert [step for step, _ in usable(files)] == [20, 10]
    files |= {f"{folder}/ema/step-30.pt": full(30), f"{folder}/best-step-40.pt": full(40)}
    assert [step for step, _ in usable(files)] == [20, 10]


@pytest.mark.parametrize(
    "name",
    [
        "run_2026-11-{day}_step{n}.pt",
        "ckpt_2026-11-{day}_12-{n}-00_step{n}.pt",
        "step{n}_loss2.{n}_202611{day}-12{n}00.pt",
        "202611{day}_12{n}00_step-{n}.pt",
        "step-{n}-val_acc0.{n}.pt",
        "eval_loss_2.{n}-step-{n}.pt",
        "step-{n}-tokens-{n}00.pt",
        "step={n}-consumed_samples={n}.0-train_loss=2.{n}e-03.ckpt",
    ],
)
def test_names_that_differ_in_a_date_a_metric_or_a_count_are_of_one_run(name: str) -> None:
    files = {name.format(n=n, day=n + 5): full(n) for n in (10, 20)}
    assert [step for step, _ in usable(files)] == [20, 10]


@pytest.mark.parametrize(
    "name", ["model-{run}b_step{n}.pt", "llama-{run}.1-step-{n}.pt", "run-{run}-loss2.{n}-step-{n}.pt"]
)
def test_names_that_differ_in_what_a_run_is_called_are_not(name: str) -> None:
    assert usable({name.format(run=run, n=n): full(n) for run, n in ((7, 10), (13, 20))}) == []


PARTS = [
    ("hf_trainer", "scheduler.pt"),
    ("hf_trainer", "rng_state.pth"),
    ("accelerate", "scheduler.bin"),
    ("accelerate", "sampler.bin"),
    ("torch_dcp", "rng_state_0.pt"),
    ("deepspeed_stage2", "lr_scheduler.pt"),
]


@pytest.mark.parametrize(("name", "part"), PARTS)
def test_a_part_of_the_state_that_the_siblings_have_is_missed_in_every_format(name: str, part: str) -> None:
    one = {path: body for path, body in layout(name).items() if path.rpartition("/")[2] not in (part, "latest")}
    root = judged(one)[0].root
    inside = {path[len(root) + 1 :]: body for path, body in one.items() if path.startswith(f"{root}/")}
    base = root.rstrip("0123456789")

    def four(*with_part: int) -> list[str]:
        files: Files = {}
        for n in (1, 2, 3, 4):
            own = inside | ({part: full(n)} if n in with_part else {})
            own |= {"trainer_state.json": b'{\n  "global_step": %d\n}' % n} if "trainer_state.json" in own else {}
            files |= {f"{base}{n}/{path}": body for path, body in own.items()}
        return sorted(item.root[len(base) :] for item in judged(files) if item.is_complete)

    assert four(1, 2, 3, 4) == ["1", "2", "3", "4"]
    assert four(1, 2, 3) == ["1", "2", "3"]
    assert four(1, 2) == ["1", "2"]
    assert four(1) == ["1", "2", "3", "4"], "the run was changed"
    files = {f"{base}{n}/{path}": body for n in (1, 2) for path, body in inside.items()}
    beside = {f"{base}1/fp32.bin": full(1), f"{base}1/adapter_config.json": b"{}", f"{base}1/eval/results.json": b"{}"}
    assert [item.problems for item in judged(files | beside)] == [item.problems for item in judged(files)]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (2, 3)])
def test_checkpoints_of_another_number_of_ranks_are_whole_beside_each_other(before: int, after: int) -> None:
    one = {path: body for path, body in layout("hf_trainer").items() if "rng_state" not in path}
    root = judged(one)[0].root
    base = root.rstrip("0123456789")
    files: Files = {}
    for n, ranks in ((1, before), (2, before), (3, after)):
        files |= {f"{base}{n}/{path[len(root) + 1 :]}": body for path, body in one.items()}
        files |= {f"{base}{n}/trainer_state.json": b'{\n  "global_step": %d\n}' % n}
        names = [f"rng_state_{rank}.pth" for rank in range(ranks)] if ranks > 1 else ["rng_state.pth"]
        files |= {f"{base}{n}/{name}": full(n) for name in names}
    assert [step for step, _ in usable(files)] == [3, 2, 1], [item.problems for item in judged(files)]


@pytest.mark.parametrize(
    ("name", "inside", "step"),
    [
        ("step_10k.pt", None, 10_000),
        ("step_10k.pt", 10_240, 10_240),
        ("step_10k.pt", 20_000, 10_000),  # held against it once others show that the script counts steps
        ("iter=1.5M.ckpt", None, 1_500_000),
        ("iter=1.5M.ckpt", 1_536_000, 1_536_000),
        ("step-2_000.pt", None, 2000),
        ("step-1_250_000.pt", None, 1_250_000),
        ("step-2,000.pt", None, 2000),
        ("step_2_000.pt", None, None),  # or a part of step 2
        ("step_2_000.pt", 2000, 2000),
        ("ckpt_00010K.pt", None, None),
        ("ckpt_00010K.pt", 10_496, 10_496),
        ("ckpt-1.5M.pt", None, None),
        ("10k.pt", None, None),
        ("10k.pt", 10_000, 10_000),
        ("checkpoint_2_1500.pt", None, None),  # an epoch and an update
        ("checkpoint_2_1500.pt", 1500, 1500),
        ("ckpt_100_20261101.pt", None, 100),
        ("step-100.pt", None, 100),
        ("checkpoint-500.pt", None, 500),
    ],
)
def test_a_number_that_is_rounded_or_may_be_two_is_settled_by_the_content(
    name: str, inside: int | None, step: int | None
) -> None:
    (item,) = judged({name: full(1) if inside is None else full(1, global_step=inside)})
    assert (item.step, item.is_complete) == (step, True)


@pytest.mark.parametrize(
    "name", ["model-125m.pt", "model-7b.pt", "weights_1.5.pt", "model-1.5.safetensors", "params-2M.npz"]
)
def test_a_models_size_or_version_is_no_step(name: str) -> None:
    assert not is_one_file(name)
    assert read_name(name).number is None


def test_a_run_that_counts_in_thousands_is_one_family_and_its_newest_is_the_furthest() -> None:
    names = ("500", "999", "1k", "1500", "2k")
    assert [step for step, _ in usable({f"step_{name}.pt": full(1) for name in names})] == [2000, 1500, 1000, 999, 500]
    folders = dcp("step-5k") | dcp("step-10k")
    assert [step for step, _ in usable(folders)] == [10_000, 5000]
    assert usable({"sft-steps-10k/last.pt": full(1)}) == [(None, "sft-steps-10k/last.pt")], "its plan is no step"


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (("checkpoint1.pt", "checkpoint_1_500.pt", "checkpoint_2_900.pt", "checkpoint_last.pt"), "checkpoint_last.pt"),
        (("epoch=0-step=10.ckpt", "epoch=0-step=10-v1.ckpt", "epoch=1-step=20.ckpt", "last-v1.ckpt"), "last-v1.ckpt"),
        (("ep0-ba10/ep0-ba10-rank0.pt", "ep0-ba20/ep0-ba20-rank0.pt"), "ep0-ba20/ep0-ba20-rank0.pt"),
    ],
    ids=["fairseq", "Lightning, started again", "Composer"],
)
def test_names_that_a_framework_gives_by_occasion_are_of_one_run(names: tuple[str, ...], newest: str) -> None:
    steps = [read_name(name).number or 10**6 for name in names]
    files = {name: full(1, global_step=step) for name, step in zip(names, steps, strict=True)}
    assert usable(files)[0][1] == newest
    assert len(usable(files)) == len(names)


def verl(step: int, *without: str, fill: int = 0) -> Files:
    ranks = [
        f"actor/{part}_world_size_2_rank_{rank}.pt" for part in ("model", "optim", "extra_state") for rank in (0, 1)
    ]
    body = torch_archive({"w": {}}, fill)
    return {f"global_step_{step}/{name}": body for name in (*ranks, "data.pt") if name not in without} | {
        f"global_step_{step}/actor/huggingface/config.json": b"{}"
    }


def own(step: int, *names: str) -> Files:
    return {f"step-{step}/{name}": full(step) for name in names}


LOST = "actor/optim_world_size_2_rank_1.pt"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (verl(100) | verl(200), [200, 100]),
        (verl(100) | verl(200) | verl(300, LOST), [200, 100]),
        (verl(100), []),
        (verl(100) | verl(200, LOST), []),
        (verl(100, LOST) | verl(200, LOST) | verl(300), []),
        (verl(100, fill=500_000) | verl(200), []),
        (verl(100) | verl(200) | {"global_step_200/actor/huggingface/results.json": b"{}"}, [200, 100]),
        (own(1, "model.pt", "optimizer.pt", "extra.pt") | own(2, "model.pt", "optimizer.pt", "extra.pt"), [2, 1]),
        (
            own(1, "model/rank_00.pt", "optimizer/rank_00.pt") | own(2, "model/rank_00.pt", "optimizer/rank_00.pt"),
            [2, 1],
        ),
        (own(1, "model.pt", "opt.pt") | own(2, "model.pt", "opt.pt") | {"step-2/opt.pt": full(2)[:-9]}, [1]),
    ],
    ids=lambda value: "",
)
def test_folders_of_a_scripts_own_are_whole_where_two_are_alike_and_none_has_more(
    files: Files, expected: list[int]
) -> None:
    assert [step for step, _ in usable(files)] == expected


def test_twins_without_an_optimizer_or_a_certain_step_stay_unknown() -> None:
    for names in (("model.safetensors", "config.json"), ("adapter.bin",)):
        files = {f"step-{n}/{name}": torch_archive({"w": {}}) for n in (1, 2) for name in names}
        assert usable(files) == []
    counted = [f"checkpoint_{n:06d}/{name}.pt" for n in (1, 2) for name in ("state", "optimizer")]
    assert usable({path: full(1) for path in counted}) == [], "Ray counts reports"
    named = {path: full(1, global_step=int(path[11:17]) * 50) for path in counted}
    assert [step for step, _ in usable(named)] == [100, 50]


def test_folders_of_a_scripts_own_give_way_to_those_of_a_known_layout() -> None:
    assert [root for _, root in usable(verl(100) | verl(200) | dcp("state/step-50"))] == ["state/step-50"]


def test_weights_that_a_scripts_hooks_save_are_accelerates_too() -> None:
    inside = {path: body for path, body in layout("accelerate").items() if "checkpoint_0/" in path}
    files = {path.replace("model.saf", "unet/diffusion_pytorch_model.saf"): body for path, body in inside.items()}
    assert [item.problems for item in judged(files)] == [()]
    without = {path: body for path, body in files.items() if "unet" not in path}
    assert [item.problems for item in judged(without)] == [("the model's weights are missing",)]


def test_what_is_no_tensor_in_a_megatron_core_checkpoint_is_missed() -> None:
    config = {"iter_0000500/metadata.json": b'{"sharded_backend": "torch_dist", "common_backend": "torch"}'}
    files = dcp("iter_0000500") | config
    assert [item.problems for item in judged(files)] == [("common.pt is missing",)]
    assert usable(files | {"iter_0000500/common.pt": full(1)}) == [(500, "iter_0000500")]


@pytest.mark.parametrize(
    "names",
    [
        ("ep0-ba{n}-rank0.pt", "ep0-ba{n}-rank1.pt"),
        ("checkpoint_1_{n}-shard0.pt", "checkpoint_1_{n}-shard1.pt"),
        ("d20/model_{n:06d}.pt", "d20/optim_{n:06d}_rank0.pt", "d20/optim_{n:06d}_rank1.pt"),
        ("model{n:06d}.pt", "optim{n:06d}.pt"),
    ],
    ids=["Composer", "fairseq", "nanochat", "guided diffusion"],
)
def test_parts_beside_a_checkpoint_of_one_file_are_parts_of_it(names: tuple[str, ...]) -> None:
    files = {name.format(n=n): full(1, global_step=n) for name in names for n in (500, 1000, 1500)}
    assert [step for step, _ in usable(files)] == [1500, 1000, 500]
    assert {path for item in judged(files) for path in item.files} == set(files), "none of them is unknown"
    for name in names[1:]:
        lost, cut = name.format(n=1500), files[name.format(n=1500)][:-9]
        assert [step for step, _ in usable({path: files[path] for path in files if path != lost})] == [1000, 500]
        assert [step for step, _ in usable(files | {lost: cut})] == [1000, 500]
    last = {f"{names[0].rpartition('/')[0]}/checkpoint_last.pt".lstrip("/"): full(1, global_step=1600)}
    assert not any(item.problems and "missing" in item.problems[0] for item in judged(files | last)), "has no number"
