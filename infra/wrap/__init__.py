"""`rekindle stack package`: the built template with a Terraform module and a CDK stack around it, and the hub's.

`python -m infra.wrap` writes infra/wrap/terraform/variables.tf and parameters.tf from infra/template: a parameter has
one source, and tests/infra/test_wrap.py fails where the module lacks one.

The tested template is wrapped, not written again: resources in HCL would be a second template that nothing rehearses,
and the CDK's CfnInclude refuses this one (an EventInvokeConfig without OnSuccess).
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
FOLDERS: Final = ("terraform", "cdk", "hub")
_MARK: Final = "# Written by `python -m infra.wrap` from the template's parameters.\n"
# CloudFormation's type -> Terraform's. Source: CloudFormation guide, parameters section; Terraform, type constraints.
_TYPES: Final[Mapping[str, str]] = {"String": "string", "Number": "number", "CommaDelimitedList": "list(string)"}


class UnknownType(Exception):
    """A parameter has a type that Terraform's has no counterpart of here."""


def write(out: Path) -> None:
    """Put the module and the stack beside what infra.package has built in `out`. Raises: OSError."""
    for name in FOLDERS:
        shutil.copytree(HERE / name, out / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def generated(parameters: Mapping[str, Any]) -> dict[str, str]:
    """File name -> text: the variables of the module, and what the stack is given of them. Raises: UnknownType."""
    variables = "\n".join(_variable(name, about) for name, about in sorted(parameters.items()))
    width = max(len(name) for name in parameters)
    given = [f"    {name:<{width}} = {_value(name, about)}" for name, about in sorted(parameters.items())]
    values = "\n".join(["locals {", "  parameters = {", *given, "  }", "}", ""])
    return {"variables.tf": f"{_MARK}\n{variables}", "parameters.tf": f"{_MARK}\n{values}"}


def snake_case(name: str) -> str:
    """A parameter's name as Terraform writes names: NoticeEmail is notice_email."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def _type(name: str, about: Mapping[str, Any]) -> str:
    if about["Type"] not in _TYPES:
        raise UnknownType(f"{name} is a {about['Type']}")
    return _TYPES[about["Type"]]


def _variable(name: str, about: Mapping[str, Any]) -> str:
    kind, default = _type(name, about), about["Default"]
    if kind == "list(string)":
        default = [value for value in str(default).split(",") if value]
    text = " ".join(str(about["Description"]).split())
    lines = [
        f'variable "{snake_case(name)}" {{',
        f"  type        = {kind}",
        f"  default     = {_literal(default)}",
        f"  description = {_literal(text)}",
        *_validation(name, about),
        "}",
        "",
    ]
    return "\n".join(lines)


def _validation(name: str, about: Mapping[str, Any]) -> list[str]:
    """What CloudFormation would refuse later is refused at the plan."""
    here = f"var.{snake_case(name)}"
    if "AllowedValues" in about:
        condition = f"contains({_literal(about['AllowedValues'])}, {here})"
        text = f"must be one of {', '.join(str(value) for value in about['AllowedValues'])}."
    elif "AllowedPattern" in about:
        pattern = _literal(about["AllowedPattern"])
        condition = f"can(regex({pattern}, {here}))"
        if about["Type"] == "CommaDelimitedList":
            condition = f"alltrue([for one in {here} : can(regex({pattern}, one))])"
        text = " ".join(str(about["ConstraintDescription"]).split()).removesuffix(".") + "."
    elif "MaxLength" in about:
        condition = f"length({here}) <= {about['MaxLength']}"
        text = f"must have {about['MaxLength']} characters at most."
    elif "MinValue" in about:
        low, high = about["MinValue"], about["MaxValue"]
        condition, text = f"{here} >= {low} && {here} <= {high}", f"must be {low} to {high}."
    else:
        return []
    return [
        "",
        "  validation {",
        f"    condition     = {condition}",
        f"    error_message = {_literal(f'{snake_case(name)} {text}')}",
        "  }",
    ]


def _value(name: str, about: Mapping[str, Any]) -> str:
    here = f"var.{snake_case(name)}"
    kind = _type(name, about)
    return {"string": here, "number": f"tostring({here})", "list(string)": f'join(",", {here})'}[kind]


def _literal(value: Any) -> str:
    """As HCL writes it: JSON's quoting, with template marks doubled. Source: Terraform, strings and templates."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${").replace("%{", "%%{")


def main() -> int:
    """Write the generated files."""
    from infra.merge import merge_template

    for name, text in generated(merge_template()["Parameters"]).items():
        (HERE / "terraform" / name).write_text(text, encoding="utf-8")
    return 0
