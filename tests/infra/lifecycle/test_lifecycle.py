"""The lifecycle script as real bash processes below another root, and the folder that it comes in.

`systemctl`, `aws` and the Python that makes the virtual environment are executables on the PATH that note what they
were asked for; everything else is the machine's own.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from argparse import Namespace
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from infra.lifecycle import (
    HERE,
    NEEDED,
    LifecycleError,
    ServiceLocation,
    locked,
    policy,
    requirements,
    write,
)
from infra.lifecycle.make import place_of
from rekindle.protocol.cluster.names import cluster_prefix, order_key, queue_name
from rekindle.slurm_agent.base.settings import Settings
from rekindle.slurm_agent.privileged.allowed import Mode, read

ROOT = Path(__file__).parents[3]
PLACE = ServiceLocation(
    cluster="pretrain", stack="rekindle", bucket="runs", bus="rekindle", region="us-west-2", account="111122223333"
)
SYSTEMCTL = """#!/bin/bash
echo "systemctl $*" >> "$NOTES"
[ "$1" = "${FAIL_SYSTEMCTL:-}" ] && exit 1
[ "$1 $2" = "-q is-active" ] && [ ! -e "$NOTES.active" ] && exit 3
case $1 in start|restart) touch "$NOTES.active";; esac
exit 0
"""
PYTHON = """#!/bin/bash
case $1 in
-c) exit 0;;
--version) echo "Python 3.12.1";;
-m) echo "venv $3" >> "$NOTES"; mkdir -p "$3/bin"; cp "$0" "$3/bin/pip-python"
    echo "home = $(dirname "$0")" > "$3/pyvenv.cfg"; cat > "$3/bin/python" <<'E'
#!/bin/bash
echo "pip ${*:3}" >> "$NOTES"
[ -z "${FAIL_PIP:-}" ]
E
chmod +x "$3/bin/python";;
esac
"""
AWS = """#!/bin/bash
echo "aws $*" >> "$NOTES"
cp -r "$BUNDLE/." "${@: -1}"
"""


@dataclass
class Node:
    """A node's root, its lifecycle scripts, and what was asked of its commands."""

    home: Path
    addresses: str = "10.1.0.5"

    @property
    def root(self) -> Path:
        return self.home / "root"

    @property
    def bundle(self) -> Path:
        return self.home / "scripts" / "rekindle"

    def notes(self) -> list[str]:
        """What was asked for since the last time, without questions, which change nothing."""
        path = self.home / "notes"
        found = [line for line in path.read_text().splitlines() if "is-active" not in line] if path.exists() else []
        path.unlink(missing_ok=True)
        return [line.replace(str(self.home), "") for line in found]

    def run(self, *arguments: str, script: Path | None = None, **more: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": f"{self.home / 'bin'}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "NOTES": str(self.home / "notes"),
            "BUNDLE": str(self.bundle),
            "REKINDLE_PYTHON": str(self.home / "bin" / "python3.99"),
            "REKINDLE_ADDRESSES": self.addresses,
            "REKINDLE_SETTLE_S": "0",
            **more,
        }
        command = ["bash", str(script or self.bundle / "rekindle_agent.sh"), "--root", str(self.root), *arguments]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=self.home)

    def resource_config(self, groups: list[dict[str, Any]] | str) -> None:
        path = self.root / "opt/ml/config/resource_config.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"ClusterConfig": {"ClusterName": "pretrain", "ClusterArn": "arn"}, "InstanceGroups": groups}
        path.write_text(groups if isinstance(groups, str) else json.dumps(whole))

    def provisioning(self, text: str) -> None:
        (self.bundle.parent / "provisioning_parameters.json").write_text(text)


def group(name: str, *addresses: str, node_type: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"Name": name, "Instances": [{"CustomerIpAddress": address} for address in addresses]}
    return found | ({"SlurmConfig": {"NodeType": node_type}} if node_type else {})


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """The head node of a HyperPod cluster, seconds before its lifecycle script runs for the first time."""
    made = Node(tmp_path)
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, text in (("systemctl", SYSTEMCTL), ("python3.99", PYTHON), ("aws", AWS)):
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)
    (commands / "python3").symlink_to(sys.executable)
    write(PLACE, made.bundle.parent, wheels=[])
    made.resource_config([group("head", "10.1.0.5", "10.1.0.6"), group("gpu", "10.1.0.7")])
    made.provisioning(json.dumps({"version": "1.0.0", "workload_manager": "slurm", "controller_group": "head"}))
    return made


START = [
    "systemctl daemon-reload",
    "systemctl enable rekindle-agent.service",
    "systemctl restart rekindle-agent.service",
]


def test_the_head_node_gets_the_agent_and_a_second_run_changes_nothing(node: Node) -> None:
    first = node.run("--strict")
    assert first.returncode == 0, first.stdout + first.stderr
    [venv, pip, *service] = node.notes()
    assert service == START
    home = venv.partition(" ")[2]
    assert "--no-input -r /scripts/rekindle/requirements.txt" in pip
    assert os.readlink(node.root / "opt/rekindle/current") == f"{node.home}{home}"
    assert (node.root / "etc/systemd/system/rekindle-agent.service").read_text() == (
        HERE / "rekindle-agent.service"
    ).read_text()
    env_file = node.root / "etc/rekindle/agent.env"
    assert env_file.stat().st_mode & 0o777 == 0o600
    assert (node.root / "etc/rekindle/cluster").read_text() == "pretrain\n"
    assert (node.root / "etc/rekindle/cluster").stat().st_mode & 0o777 == 0o644

    allow = node.root / "etc/rekindle/allow.conf"
    assert allow.stat().st_mode & 0o777 == 0o600
    assert read(str(allow)).mode is Mode.OBSERVE
    allow.write_text("mode = act\n")

    assert node.run("--strict").returncode == 0
    assert node.notes() == []

    (node.home / "notes.active").unlink()  # somebody stopped it
    assert node.run("--strict").returncode == 0
    assert node.notes()[-1] == "systemctl start rekindle-agent.service"

    env = node.bundle / "rekindle.env"
    env.write_text(env.read_text() + "REKINDLE_POLL_S=5\n")
    assert node.run("--strict").returncode == 0
    assert node.notes() == START
    assert "REKINDLE_POLL_S=5" in env_file.read_text()

    env_file.write_text(env_file.read_text() + "REKINDLE_PARTITIONS=train\n")
    (node.bundle / "requirements.txt").write_text("rekindle==0.2.0\n")
    assert node.run("--strict").returncode == 0
    kept = env_file.read_text().splitlines()
    assert "REKINDLE_PARTITIONS=train" in kept, "an administrator's own setting"
    assert len({line.partition("=")[0] for line in kept}) == len(kept)
    [venv, _, stop, keep, *service] = node.notes()
    assert service == START
    assert stop == "systemctl stop rekindle-agent.service"
    assert keep.partition("/")[0] == "pip keep "
    assert keep.endswith(f"/rekindle/agent.sqlite {home}/agent.sqlite"), "the journal, for the way back"
    assert venv.partition(" ")[2] != home
    assert os.readlink(node.root / "opt/rekindle/current") == f"{node.home}{venv.partition(' ')[2]}"
    left = sorted(path.name for path in (node.root / "etc/rekindle").iterdir())
    assert allow.read_text() == "mode = act\n", "what the administrator says stays"
    assert left == ["agent.env", "allow.conf", "cluster"], "nothing half-written stays behind"


def test_an_agent_that_acted_before_there_was_such_a_file_acts_on(node: Node) -> None:
    assert node.run("install").returncode == 0
    allow = node.root / "etc/rekindle/allow.conf"
    allow.unlink()
    (node.bundle / "requirements.txt").write_text("rekindle==0.2.0\n")
    assert node.run("upgrade").returncode == 0
    assert not allow.exists()
    (node.bundle / "allow.conf").write_text("mode = act\n")
    write(PLACE, node.bundle.parent, wheels=[])
    assert (node.bundle / "allow.conf").read_text() == "mode = act\n", "a folder that is made again keeps it"


def test_the_agent_can_read_what_was_installed(node: Node) -> None:
    node.run("--strict")
    lines = (node.root / "etc/rekindle/agent.env").read_text().splitlines()
    found = Settings.read(
        {**dict(line.split("=", 1) for line in lines), "SAGEMAKER_RESOURCE_CONFIG_PATH": str(node.home / "none")}, {}
    )
    assert (found.cluster, found.stack, found.bucket, found.bus) == ("pretrain", "rekindle", "runs", "rekindle")
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(HERE / "rekindle-agent.service")
    service = unit["Service"]
    assert service["ExecStart"] == "/opt/rekindle/current/bin/python -m rekindle.slurm_agent"
    assert service["EnvironmentFile"] == "/etc/rekindle/agent.env"
    assert (service["Restart"], service["NoNewPrivileges"]) == ("always", "yes")


def test_the_sandbox_of_both_processes() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(HERE / "rekindle-agent.service")
    service = unit["Service"]
    on = {
        name
        for name, given in service.items()
        if given == "yes" and name.startswith(("Protect", "Private", "Restrict"))
    }
    assert on == {
        "ProtectKernelTunables",
        "ProtectKernelModules",
        "ProtectKernelLogs",
        "ProtectControlGroups",
        "ProtectClock",
        "ProtectHostname",
        "PrivateDevices",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
    }
    assert (service["ProtectSystem"], service["LockPersonality"], service["KeyringMode"]) == ("full", "yes", "private")
    assert (service["SystemCallArchitectures"], service["NoNewPrivileges"]) == ("native", "yes")
    assert (service["SystemCallFilter"], service["SystemCallErrorNumber"]) == ("@system-service", "EPERM")
    assert (service["ProtectProc"], service["LimitCORE"]) == ("invisible", "0")
    assert service["RestrictAddressFamilies"].split() == ["AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"]
    may = {name.removeprefix("CAP_") for name in service["CapabilityBoundingSet"].split()}
    assert may == {"SETUID", "SETGID", "DAC_OVERRIDE", "DAC_READ_SEARCH", "CHOWN", "FOWNER", "KILL"}
    # Both would take the border away: the agent's files would be given back to root at each start.
    assert not {"User", "StateDirectory", "DynamicUser"} & set(service)


@pytest.mark.parametrize(
    ("addresses", "groups", "provisioning"),
    [
        ("10.1.0.7", [group("head", "10.1.0.5"), group("gpu", "10.1.0.7")], '{"controller_group": "head"}'),
        ("10.1.0.7", [group("gpu", "10.1.0.7", node_type="Compute")], "{}"),
        ("10.1.0.8", [group("in", "10.1.0.8", node_type="Login")], '{"controller_group": "in"}'),
    ],
)
def test_other_nodes_only_learn_the_clusters_name(
    node: Node, addresses: str, groups: list[dict[str, Any]], provisioning: str
) -> None:
    node.resource_config(groups)
    node.provisioning(provisioning)
    node.addresses = addresses
    assert node.run("--strict").returncode == 0
    assert node.notes() == []
    assert [path.name for path in (node.root / "etc/rekindle").iterdir()] == ["cluster"]
    assert not (node.root / "opt/rekindle").exists()


def test_a_second_head_node_has_an_agent_as_well(node: Node) -> None:
    """Of all agents of a cluster the one that holds its lease acts."""
    node.addresses = "10.1.0.6"
    assert node.run("--strict").returncode == 0
    assert node.notes()[-3:] == START


def test_newer_clusters_say_in_the_resource_config_who_the_controller_is(node: Node) -> None:
    node.resource_config(
        [group("gpu", "10.1.0.7", node_type="Compute"), group("c", "10.1.0.5", node_type="Controller")]
    )
    (node.bundle.parent / "provisioning_parameters.json").unlink()
    node.addresses = "172.17.0.1 10.1.0.5"
    assert node.run("--strict").returncode == 0
    assert node.notes()[-3:] == START


@pytest.mark.parametrize(("kind", "is_head"), [('"HeadNode"', True), ("HeadNode", True), ('"ComputeFleet"', False)])
def test_parallelcluster_fetches_the_folder_and_says_itself_what_a_node_is(
    node: Node, kind: str, is_head: bool
) -> None:
    (node.root / "opt/ml/config/resource_config.json").unlink()
    config = node.root / "etc/parallelcluster/cfnconfig"
    config.parent.mkdir(parents=True)
    config.write_text(f"stack_name=hpc\ncfn_node_type={kind}\n")
    alone = node.home / "downloaded" / "script"
    alone.parent.mkdir()
    alone.write_bytes((HERE / "rekindle_agent.sh").read_bytes())
    ended = node.run("--strict", "--from", "s3://scripts/rekindle/", script=alone)
    assert ended.returncode == 0, ended.stdout
    notes = node.notes()
    assert notes[0].startswith("aws s3 cp --recursive --only-show-errors s3://scripts/rekindle/ /root/")
    assert notes[0].endswith("/opt/rekindle/bundle/")
    assert (notes[-3:] == START) is is_head
    assert (node.root / "etc/rekindle/cluster").read_text() == "pretrain\n", "from the folder's own settings"


def test_any_slurm_by_hand(node: Node) -> None:
    (node.root / "opt/ml/config/resource_config.json").unlink()
    assert node.run("--strict", "--controller").returncode == 0
    assert node.notes()[-3:] == START


@pytest.mark.parametrize("config", ["", "{", "[]", '{"InstanceGroups": 3}', '{"InstanceGroups": [{"Instances": "x"}]}'])
@pytest.mark.parametrize("is_strict", [True, False])
def test_a_broken_config_is_told_and_never_fails_the_node(node: Node, config: str, is_strict: bool) -> None:
    node.resource_config(config)
    ended = node.run(*(["--strict"] if is_strict else []))
    assert ended.returncode == int(is_strict)
    assert "give --controller there" in ended.stdout
    assert "ERROR" in (node.root / "var/log/rekindle-install.log").read_text()
    assert not [line for line in node.notes() if "systemctl" in line]


@pytest.mark.long
@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"FAIL_PIP": "1"}, "could not be installed"),
        ({"FAIL_SYSTEMCTL": "restart"}, "did not start"),
        ({"FAIL_SYSTEMCTL": "daemon-reload"}, "daemon-reload"),
    ],
)
def test_what_failed_is_done_by_the_next_run(node: Node, broken: dict[str, str], said: str) -> None:
    ended = node.run(**broken)
    assert ended.returncode == 0, "a lifecycle script that fails takes the cluster with it"
    assert said in ended.stdout
    assert node.run("--strict", **broken).returncode == 1
    node.notes()
    assert node.run("--strict").returncode == 0
    notes = node.notes()
    assert notes[-1].endswith("start rekindle-agent.service")
    assert any(line.startswith("pip") for line in notes) is ("FAIL_PIP" in broken)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda node: (node.bundle / "rekindle.env").unlink(), "rekindle.env"),
        (lambda node: (node.bundle / "rekindle.env").write_text("REKINDLE_BUCKET=\n"), "REKINDLE_BUCKET is missing"),
        (lambda node: (node.bundle / "requirements.txt").unlink(), "requirements.txt"),
        (lambda node: (node.bundle / "rekindle-agent.service").unlink(), "unit"),
    ],
)
def test_a_folder_that_is_not_whole_is_told(node: Node, spoil: Any, said: str) -> None:
    spoil(node)
    assert node.run().returncode == 0
    ended = node.run("--strict")
    assert ended.returncode == 1
    assert said in ended.stdout
    assert not [line for line in node.notes() if "start" in line]


def test_wrong_arguments_are_told(node: Node) -> None:
    ended = node.run("--strict", "--frm", "x")
    assert (ended.returncode, "--frm" in ended.stdout or "unknown argument" in ended.stdout) == (2, True)
    assert node.run("--frm").returncode == 0
    assert node.run("status", "stop").returncode == 2


@pytest.mark.parametrize("verb", ["upgrade", "rollback", "uninstall", "status", "stop"])
def test_where_nothing_is_installed_every_other_verb_says_so(node: Node, verb: str) -> None:
    ended = node.run(verb)
    assert (ended.returncode, "is installed here" in ended.stdout) == (3, True), ended.stdout
    assert node.notes() == []
    assert not (node.root / "opt/rekindle").exists()


def test_what_is_installed_can_be_read_whatever_the_umask_of_root(node: Node) -> None:
    before = os.umask(0o077)
    try:
        assert node.run("install").returncode == 0
    finally:
        os.umask(before)
    for name in ("etc/rekindle", "etc/rekindle/cluster", "opt/rekindle", "opt/rekindle/current"):
        assert (node.root / name).stat().st_mode & 0o004, name
    assert (node.root / "etc/rekindle/agent.env").stat().st_mode & 0o077 == 0


def test_a_python_that_not_every_user_can_run_is_not_taken(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    python = Path(shutil.copy(os.path.realpath(sys.executable), closed / "python3"))
    function = re.search(r"^is_for_all\(\).*?^}$", (HERE / "rekindle_agent.sh").read_text(), re.DOTALL | re.MULTILINE)
    assert function is not None

    def code_of(candidate: Path) -> int:
        env = {"PYTHONHOME": sys.base_prefix} if candidate == python else {}
        return subprocess.run(["bash", "-c", f"{function[0]}\nis_for_all {candidate}"], env=env, check=False).returncode

    assert code_of(python) == 1
    if (of_system := Path("/usr/bin/python3")).exists():
        assert code_of(of_system) == 0


def test_the_name_that_every_other_node_has_is_removed_there(node: Node) -> None:
    assert node.run("install", "--not-controller").returncode == 0
    assert node.run("uninstall", "--dry-run").returncode == 0
    assert (node.root / "etc/rekindle/cluster").exists()
    ended = node.run("uninstall")
    assert (ended.returncode, (node.root / "etc/rekindle").exists()) == (0, False), ended.stdout
    assert node.run("uninstall").returncode == 3


def test_a_dry_run_says_the_whole_plan_and_does_nothing(node: Node) -> None:
    ended = node.run("install", "--dry-run")
    assert ended.returncode == 0
    for word in ("would leave the name pretrain", "would make", "would put", "would start the agent"):
        assert word in ended.stdout
    assert node.notes() == []
    assert sorted(path.name for path in node.root.iterdir()) == ["opt"]
    assert [path.name for path in (node.root / "opt").iterdir()] == ["ml"], "SageMaker's own"


def test_a_head_node_without_python_takes_the_one_that_the_folder_carries(node: Node, tmp_path: Path) -> None:
    archive = tmp_path / "cpython.tar.gz"
    inside = tmp_path / "python/bin"
    inside.mkdir(parents=True)
    (inside / "python3").write_text(PYTHON)
    (inside / "python3").chmod(0o755)
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(tmp_path / "python", "python")
    write(PLACE, node.bundle.parent, wheels=[], python=archive)
    assert node.run("install", "--dry-run", REKINDLE_PYTHON="").returncode == 0
    assert not list((node.root / "opt").glob("rekindle/*"))
    ended = node.run("install", REKINDLE_PYTHON="")
    assert ended.returncode == 0, ended.stdout
    (unpacked,) = (node.root / "opt/rekindle").glob("python-*")
    assert (unpacked / "python/bin/python3").exists()
    assert [line.partition(" ")[0] for line in node.notes()][:2] == ["venv", "pip"]


def test_a_folder_made_for_another_cluster_is_told_and_the_nodes_own_name_holds(node: Node) -> None:
    write(
        ServiceLocation(**{**{name: getattr(PLACE, name) for name in PLACE.__dataclass_fields__}, "cluster": "other"}),
        node.bundle.parent,
        wheels=[],
    )
    ended = node.run("--strict")
    assert "made for other" in ended.stdout
    assert "REKINDLE_CLUSTER=pretrain" in (node.root / "etc/rekindle/agent.env").read_text()


# ---- the folder ------------------------------------------------------------------------------------------------------

CALLS = {
    "get_queue_url": "sqs:GetQueueUrl",
    "receive_message": "sqs:ReceiveMessage",
    "delete_message": "sqs:DeleteMessage",
    "change_message_visibility": "sqs:ChangeMessageVisibility",
    "get_object": "s3:GetObject",
    "put_object": "s3:PutObject",
    "list_objects_v2": "s3:ListBucket",
    "get_paginator": "s3:ListBucket",
    "put_events": "events:PutEvents",
    "delete_objects": "s3:DeleteObject",
    "send_message": "sqs:SendMessage",
}


def test_the_policy_grants_what_the_agent_calls_on_its_own_clusters_things_only() -> None:
    statements = policy(PLACE)["Statement"]
    granted = {action for statement in statements if statement["Effect"] == "Allow" for action in statement["Action"]}
    (denied,) = (statement for statement in statements if statement["Effect"] == "Deny")
    assert denied["Action"] == ["s3:PutObject"]
    assert denied["Resource"].endswith(order_key("pretrain", "x").replace("x.json", "*")), "orders are the service's"
    source = "\n".join(path.read_text() for path in (ROOT / "rekindle/slurm_agent").rglob("*.py"))
    called = {action for name, action in CALLS.items() if re.search(rf"\.{name}\(", source)}
    assert called <= granted
    assert granted - called <= {"sqs:ChangeMessageVisibility"}
    for statement in statements:
        resource = statement["Resource"]
        assert "*" not in resource.removesuffix("/*")
        assert resource.startswith("arn:aws:")
        if statement["Action"] == ["s3:ListBucket"]:
            assert statement["Condition"]["StringLike"]["s3:prefix"] == [f"{cluster_prefix('pretrain')}*"]
        elif "s3:GetObject" in statement["Action"]:
            assert resource == f"arn:aws:s3:::runs/{cluster_prefix('pretrain')}*"
        elif "sqs:ReceiveMessage" in statement["Action"]:
            assert resource.endswith(f":{queue_name('rekindle', 'pretrain')}")


def test_no_two_clusters_of_a_stack_share_a_queue_however_long_their_names_are() -> None:
    """SQS takes 80 characters: names that were only cut there let one head node take its neighbor's orders."""
    base = "research-large-language-model-pretraining-h100-oregon-zone-a"
    clusters = [f"{base}{end}" for end in ("-01", "-02", "")]
    places = [replace(PLACE, stack="rekindle-staging", cluster=cluster) for cluster in clusters]
    queues = [policy(place)["Statement"][0]["Resource"].rpartition(":")[2] for place in places]
    assert len(set(queues)) == len(clusters)
    assert all(re.fullmatch("rekindle-staging-agent-[A-Za-z0-9_-]+", queue) and len(queue) <= 80 for queue in queues)
    assert queue_name("rekindle", "hpc") == "rekindle-agent-hpc"


@pytest.mark.parametrize(
    ("field", "value"),
    [("bucket", "Runs"), ("account", "1"), ("region", "us west"), ("bus", ""), ("stack", "9"), ("partition", "azure")],
)
def test_what_cannot_be_a_name_is_refused_by_its_option(field: str, value: str) -> None:
    with pytest.raises(LifecycleError, match=f"--{field}"):
        ServiceLocation(**{**{name: getattr(PLACE, name) for name in PLACE.__dataclass_fields__}, field: value})


def test_every_line_has_its_hash(tmp_path: Path) -> None:
    wheel = tmp_path / "python_dateutil-2.9.0.post0-py2.py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    [line] = requirements([wheel]).splitlines()
    assert re.fullmatch(r"python_dateutil==2\.9\.0\.post0 --hash=sha256:[0-9a-f]{64}", line)


def test_what_the_folder_carries_is_downloaded_by_its_hashes() -> None:
    text = (ROOT / "requirements.txt").read_text()
    lines = locked(text).splitlines()
    named = [line for line in lines if not line.startswith(" ")]
    assert [line.split("==")[0] for line in named] == list(NEEDED)
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", line) for line in lines if line.startswith(" "))
    assert len(lines) >= 2 * len(NEEDED)
    with pytest.raises(LifecycleError, match="no hash of boto3"):
        locked(re.sub(r"^(boto3==[^ ]+)[^\n]*\n([ ]+--hash[^\n]*\n)+", r"\1\n", text, flags=re.MULTILINE))


def test_with_wheels_nothing_comes_from_the_network(node: Node) -> None:
    wheel = node.home / "rekindle-0.1.0-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    write(PLACE, node.bundle.parent, wheels=[wheel])
    assert node.run("--strict").returncode == 0
    [pip] = [line for line in node.notes() if line.startswith("pip")]
    assert "--no-index --find-links /scripts/rekindle/wheels --require-hashes" in pip


@mock_aws
def test_the_stack_says_where_the_service_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    outputs = {"BucketName": {"Value": {"Ref": "B"}}, "BusName": {"Value": "rekindle-bus"}}
    template = {
        "Resources": {"B": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": "runs-bucket"}}},
        "Outputs": outputs,
    }
    client = boto3.client("cloudformation")
    client.create_stack(StackName="rekindle", TemplateBody=json.dumps(template))
    asked = dict.fromkeys(("bucket", "bus", "region", "account", "partition"))
    assert place_of(Namespace(cluster="pretrain", stack="rekindle", **asked)) == ServiceLocation(
        cluster="pretrain",
        stack="rekindle",
        bucket="runs-bucket",
        bus="rekindle-bus",
        region="eu-west-1",
        account="123456789012",
    )
    with pytest.raises(LifecycleError, match="nowhere"):
        place_of(Namespace(cluster="pretrain", stack="nowhere", **asked))
