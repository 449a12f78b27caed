"""`REKINDLE_DATA=FOLDER make bench ARGS=field`: the product's readers on what people have posted.

FOLDER holds `field/`, whose kinds each have an `expected.json` with the right answers. Prints one line per kind, then
each wrong answer.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from chalicelib.domain.faults.slurm_states import failure_of_end
from rekindle.cli.main import main as rekindle
from rekindle.protocol.cluster.documents import CauseDoc, SlurmState
from rekindle.signatures.classifier import Classifier
from rekindle.slurm_agent.files.cause import of_text

GOALS: Final = "goals: logs 0.95 of causes and of responses, no healthy line called a fault; of all others 0 wrong"
HEALTHY: Final = "benign"
# Of a curve: how many rows are read, whether something is seen, and whether an act is allowed.
CURVES: Final[dict[str, tuple[int | None, bool, bool]]] = {
    "kl_from_zero.csv": (None, False, False),
    "reward_logged_as_loss.csv": (None, False, False),
    "grows_by_design.csv": (None, False, False),
    "megatron.log": (399, True, True),
    "nanogpt.log": (400, False, True),
    "hf_stdout.log": (400, False, True),
    "lightning_metrics.csv": (None, False, True),
    "hf_with_predict.json": (400, False, True),
}
# Of a folder of checkpoints, for each step: what is wrong with it, "" where it is whole. The folder's own answers are
# sentences.
CHECKPOINTS: Final[dict[str, dict[int, str]]] = {
    "hf_nan_weights": {10: "model.safetensors holds NaN"},
    "hf_no_scheduler": {10: "", 20: "scheduler.pt is missing"},
    "nemo2": {99: "", 199: ""},
    "megatron_legacy": {300: ""},
    "dcp_stale_metadata": {100: ".metadata"},
}
Answers = Iterator[tuple[str, str]]  # the case, and what is wrong with it: "" where nothing is


def _run(*arguments: object) -> tuple[int, list[str]]:
    """The exit code and the lines of both streams."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = rekindle([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, said.getvalue().splitlines()


def _objects(*arguments: object) -> list[dict[str, Any]]:
    _, lines = _run(*arguments)
    return [json.loads(line) for line in lines if line.startswith("{")]


def _expected(folder: Path) -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    return cases


def _roots(folder: Path) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    for name, case in _expected(folder).items():
        said = _objects("classify", "--json", folder / f"{name}.log")
        yield name, case, next((line["root_cause"] for line in said if line.get("root_cause")), {})


def causes(folder: Path) -> Answers:
    for name, case, root in _roots(folder):
        label = root.get("label", HEALTHY)
        yield name, "" if label in (case["label"], *case["also"]) else f"{label}, not {case['label']}"


def responses(folder: Path) -> Answers:
    for name, case, root in _roots(folder):
        response = root.get("first_response", "")
        is_right = response in (case["response"], *case["response_also"])
        yield name, "" if is_right else f"{response}, not {case['response']}"


def scripts(folder: Path) -> Answers:
    for name, case in _expected(folder).items():
        found = _objects("doctor", "cluster", "--offline", "--json", "--script", folder / name)
        said = {finding["check"] for finding in found}
        errors = {finding["check"] for finding in found if finding["severity"] == "error"}
        wrong = [f"{check} is not said" for check in case["should_say"] if check not in said]
        wrong += [
            f"{check} is an error" for check in sorted(errors) if case["no_error"] or check in case["must_not_error"]
        ]
        yield name, "; ".join(wrong)


def configurations(folder: Path) -> Answers:
    for name, case in _expected(folder).items():
        arguments: list[object] = ["--config", folder / f"{name}.create_cluster.json"]
        provisioning = folder / f"{name}.provisioning_parameters.json"
        arguments += ["--provisioning", provisioning] if provisioning.is_file() else []
        found = _objects("doctor", "cluster", "--offline", "--json", *arguments)
        errors = {finding["check"] for finding in found if finding["severity"] == "error"}
        wanted = [set(name.split("|")) for name in case["errors"]]
        wrong = [f"{'|'.join(sorted(names))} is not found" for names in wanted if not names & errors]
        wrong += [f"{check} is an error" for check in sorted(errors) if not any(check in names for names in wanted)]
        yield name, "; ".join(wrong)


def curves(folder: Path) -> Answers:
    for name, (rows, is_seen, may_act) in CURVES.items():
        code, lines = _run("detect", "--watch", folder / name)
        last = lines[-1] if lines else ""
        wrong = [] if code == 0 else [last]
        if code == 0 and rows is not None and not last.endswith(f" in {rows} rows"):
            wrong.append(f"{last}, not {rows} rows")
        if is_seen and last.startswith("0 alarms and 0 watches"):
            wrong.append("nothing is seen")
        if not may_act and not last.startswith("0 alarms"):
            wrong.append(f"an act: {lines[1]}")
        yield name, "; ".join(wrong)


def healthy_lines(folder: Path) -> Answers:
    """The excerpts beside the folder that are labelled healthy."""
    excerpts = (folder.parents[1] / "log_lines.jsonl").read_text(encoding="utf-8").splitlines()
    for number, case in enumerate(map(json.loads, excerpts), start=1):
        if case["label"] == HEALTHY:
            label = Classifier().classify(case["text"]).label
            yield f"excerpt {number}", "" if label == HEALTHY else f"called {label}"


def slurm_path(folder: Path) -> Answers:
    """What the agent finds in a failed job's output, and what the service takes it for."""
    cases: dict[str, dict[str, Any]] = json.loads((folder / "slurm_path.json").read_text(encoding="utf-8"))
    for name, case in cases.items():
        found = of_text("\n".join(case["log"]).encode()).cause
        arrived = CauseDoc.from_wire(json.loads(json.dumps(found.to_wire()))) if found else None
        failure = failure_of_end(SlurmState.FAILED, cause=arrived)
        sides = {"agent": arrived.fault if arrived else None, "service": failure.fault if failure else None}
        yield name, "; ".join(f"{side}: {fault}" for side, fault in sides.items() if fault != case["fault"])


def checkpoints(folder: Path) -> Answers:
    for name in _expected(folder):
        _, lines = _run("checkpoints", "--json", folder / name)
        found = {view["step"]: view for view in json.loads("\n".join(lines))}
        wanted = CHECKPOINTS.get(name, {})
        wrong = [] if found.keys() == wanted.keys() else [f"steps {sorted(found)}, not {sorted(wanted)}"]
        for step, why in wanted.items():
            problems = "; ".join(found[step]["problems"]) if step in found else ""
            if why not in problems or (not why and problems):
                wrong.append(f"{step}: {problems or 'whole'}, not {why or 'whole'}")
        yield name, "; ".join(wrong)


def events(folder: Path) -> Answers:
    for name, case in _expected(folder).items():
        told = _objects("replay", "--json", folder / f"{name}.json")
        wrong = [] if told else ["nothing is said"]
        is_whole = case.get("taken") or case.get("malformed") is False
        if is_whole and any(line["malformed"] for line in told):
            wrong.append("malformed")
        if case.get("taken") and not any(line["signal"] for line in told):
            wrong.append("not taken in")
        if case.get("taken") and "fault" in case and not any(line["fault"] == case["fault"] for line in told):
            wrong.append(f"{told[0]['fault'] if told else None}, not {case['fault']}")
        yield name, "; ".join(wrong)


KINDS: Final[tuple[tuple[str, str, Callable[[Path], Answers]], ...]] = (
    ("logs: root cause", "logs", causes),
    ("logs: first response", "logs", responses),
    ("healthy lines", "logs", healthy_lines),
    ("Slurm's output", ".", slurm_path),
    ("batch scripts", "scripts", scripts),
    ("configurations", "configs", configurations),
    ("events", "events", events),
    ("curves", "curves", curves),
    ("checkpoints", "checkpoints", checkpoints),
)


def main() -> None:
    named = os.environ.get("REKINDLE_DATA")
    folder = Path(named) / "field" if named else None
    if folder is None or not folder.is_dir():
        print("nothing to read: set REKINDLE_DATA to a folder that holds field/")
        return
    for kind, under, answers in KINDS:
        found = list(answers(folder / under))
        wrong = [(name, why) for name, why in found if why]
        right = len(found) - len(wrong)
        print(
            f"{kind:22} {right:3d}/{len(found):<3d} {right / max(len(found), 1):5.2f}  {len(wrong)} wrong", flush=True
        )
        for name, why in wrong:
            print(f"    {name}: {why}")
    print(GOALS)
