"""The Terraform module and the CDK stack carry the packaged template whole."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from infra.merge import merge_template
from infra.package import BUNDLE, TEMPLATE
from infra.wrap import HERE, generated, snake_case, write
from tests.infra.stack_reading import Template

MODULE = HERE / "terraform"
CDK = HERE / "cdk" / "rekindle_cdk.py"
ENV_CDK = "REKINDLE_CDK_PYTHON"  # a Python that has aws-cdk-lib, and node
URI = '"CodeUri": "./deployment.zip"'


def test_the_modules_variables_are_what_the_templates_parameters_make_of_them(template: Template) -> None:
    assert template["Parameters"].keys() == merge_template()["Parameters"].keys()
    for name, text in generated(template["Parameters"]).items():
        assert (MODULE / name).read_text(encoding="utf-8") == text, f"{name}: python -m infra.wrap"


def test_every_parameter_has_a_variable_and_is_given_to_the_stack(template: Template) -> None:
    variables = set(re.findall(r'^variable "(\w+)"', (MODULE / "variables.tf").read_text(), re.MULTILINE))
    given = dict(re.findall(r"^    (\w+) += .*var\.(\w+)", (MODULE / "parameters.tf").read_text(), re.MULTILINE))
    assert variables == {snake_case(name) for name in template["Parameters"]}
    assert given == {name: snake_case(name) for name in template["Parameters"]}


def test_a_new_parameter_without_a_variable_is_seen(template: Template) -> None:
    more = {**template["Parameters"], "NewOne": {"Type": "String", "Default": "", "Description": "new"}}
    assert generated(more)["variables.tf"] != (MODULE / "variables.tf").read_text(encoding="utf-8")
    assert 'variable "new_one"' in generated(more)["variables.tf"]
    assert "NewOne                = var.new_one" in generated(more)["parameters.tf"]


def test_the_place_that_the_module_replaces_stands_once_in_each_function(package: Path, template: Template) -> None:
    text = (package / TEMPLATE).read_text(encoding="utf-8")
    functions = [
        resource for resource in template["Resources"].values() if resource["Type"] == "AWS::Serverless::Function"
    ]
    assert text.count(URI) == len(functions) == text.count('"CodeUri"')
    assert URI.replace('"', '\\"') in (MODULE / "main.tf").read_text(encoding="utf-8")
    assert BUNDLE in (MODULE / "main.tf").read_text(encoding="utf-8")


def test_the_cdk_stack_knows_every_word_of_the_template(template: Template) -> None:
    """Else it would refuse the template, when somebody deploys."""
    assert template.keys() <= {
        "AWSTemplateFormatVersion",
        "Conditions",
        "Description",
        "Globals",
        "Outputs",
        "Parameters",
        "Resources",
        "Transform",
    }
    (words,) = (
        ast.literal_eval(statement.value)
        for statement in ast.parse(CDK.read_text(encoding="utf-8")).body
        if isinstance(statement, ast.Assign)
        and isinstance(statement.targets[0], ast.Name)
        and statement.targets[0].id == "WORDS"
    )
    assert {word for about in template["Parameters"].values() for word in about} <= words.keys()
    assert {word for about in template["Outputs"].values() for word in about} <= {"Value", "Description", "Condition"}
    assert {key: list(value) for key, value in template["Globals"].items()} == {"Function": ["Environment"]}
    used = set(re.findall(r'"(Fn::\w+|Condition)":', json.dumps(template["Conditions"])))
    assert used - {"Fn::Join"} <= {"Fn::Equals", "Fn::Not", "Fn::And", "Fn::Or", "Condition"}


@pytest.mark.skipif(shutil.which("terraform") is None, reason="no terraform on this machine")
@pytest.mark.long
def test_terraform_formats_and_evaluates_the_module(package: Path, tmp_path: Path, template: Template) -> None:
    """Without its provider, which only a registry has: variables and locals, and not the three resources."""
    shutil.copytree(package, tmp_path, dirs_exist_ok=True)
    write(tmp_path)
    module = tmp_path / "terraform"
    assert _terraform(module, "fmt", "-check").returncode == 0
    main = (module / "main.tf").read_text()
    plain = re.sub(
        r"\n  required_providers \{.*?\n  \}\n", "\n", main.partition('data "aws_s3_bucket"')[0], flags=re.DOTALL
    )
    (module / "main.tf").write_text(plain)
    assert _terraform(module, "init", "-input=false").returncode == 0
    ended = _terraform(module, "validate")
    assert ended.returncode == 0, ended.stderr
    roles = [f"arn:aws:iam::123456789012:role/{name}" for name in ("a", "team/b")]
    variables = ["-var", "artifact_bucket=mine", "-var", f"training_role_arns={json.dumps(roles)}"]
    ended = _terraform(module, "console", *variables, given="jsonencode([local.parameters, local.template])\n")
    parameters, text = json.loads(json.loads(ended.stdout))
    assert parameters["TrainingRoleArns"] == ",".join(roles)
    wild = ["-var", "artifact_bucket=mine", "-var", f"training_role_arns={json.dumps([*roles, '*'])}"]
    assert "each spelled out" in _terraform(module, "console", *wild, given="1\n").stderr
    assert parameters["EventConcurrency"] == "0"
    assert parameters["TrainingLogPattern"] == template["Parameters"]["TrainingLogPattern"]["Default"]
    template = copy.deepcopy(template)
    for resource in template["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = {"Bucket": "mine", "Key": _key(package)}
    assert json.loads(text) == template


def _key(package: Path) -> str:
    return f"rekindle/{hashlib.sha256((package / BUNDLE).read_bytes()).hexdigest()}.zip"


def _terraform(folder: Path, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "CHECKPOINT_DISABLE": "1", "TF_CLI_CONFIG_FILE": os.devnull}
    command = ["terraform", f"-chdir={folder}", *words]
    return subprocess.run(command, input=given, env=environ, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.skipif(ENV_CDK not in os.environ, reason=f"{ENV_CDK} names no Python with aws-cdk-lib")
@pytest.mark.long
def test_the_cdk_synthesises_the_templates_own_resources(package: Path, tmp_path: Path, template: Template) -> None:
    shutil.copytree(package, tmp_path, dirs_exist_ok=True)
    write(tmp_path)
    app = tmp_path / "cdk" / "app.py"
    app.write_text(
        "import aws_cdk as cdk\nfrom rekindle_cdk import RekindleStack\n"
        f"app = cdk.App(outdir={str(tmp_path / 'out')!r})\n"
        "RekindleStack(app, parameters={'TrainingBuckets': ['a', 'b']}, stage='dev')\napp.synth()\n"
    )
    done = subprocess.run([os.environ[ENV_CDK], str(app)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    made = json.loads((tmp_path / "out" / "Rekindle.template.json").read_text())
    shared = template["Globals"]["Function"]["Environment"]["Variables"]
    template = copy.deepcopy(template)
    for name, resource in template["Resources"].items():
        if resource["Type"] == "AWS::Serverless::Function":
            uri = made["Resources"][name]["Properties"].pop("CodeUri")
            assert uri.keys() == {"Bucket", "Key"}
            del resource["Properties"]["CodeUri"]
            own = resource["Properties"].get("Environment", {}).get("Variables", {})
            resource["Properties"]["Environment"] = {"Variables": {**shared, **own}}
    for section in ("Resources", "Conditions", "Outputs"):
        assert made[section] == template[section]
    assert made["Parameters"].keys() == {*template["Parameters"], "BootstrapVersion"}
    assert made["Parameters"]["TrainingBuckets"]["Default"] == "a,b"
