# mypy: ignore-errors
"""Rekindle's packaged template as a stack of the AWS CDK, version 2.

`rekindle stack package --out DIR` has put the template and the bundle beside this folder. The bundle becomes an asset
of the CDK's; resources, their logical ids, conditions and outputs are the template's own. It is a stack and no nested
one, because names of resources come from the stack's. docs/terraform-cdk.md has an app that uses it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

PACKAGE = Path(__file__).resolve().parent.parent
FUNCTION = "AWS::Serverless::Function"
# The template's word -> the CDK's, of a parameter.
WORDS = {
    "Type": "type",
    "Default": "default",
    "Description": "description",
    "AllowedPattern": "allowed_pattern",
    "AllowedValues": "allowed_values",
    "ConstraintDescription": "constraint_description",
    "MinValue": "min_value",
    "MaxLength": "max_length",
    "MaxValue": "max_value",
}


class RekindleStack(cdk.Stack):
    """The stack `rekindle`, or `rekindle-STAGE` for another stage than prod.

    parameters: the template's, by name; a list may be a list. package: where sam.json and deployment.zip are. Raises
    ValueError for a parameter that the template does not have, and for a template that this cannot carry whole.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str = "Rekindle",
        *,
        parameters: Mapping[str, Any] | None = None,
        stage: str = "prod",
        package: str | Path = PACKAGE,
        **options: Any,
    ) -> None:
        name = "rekindle" if stage == "prod" else f"rekindle-{stage}"
        super().__init__(scope, construct_id, stack_name=name, **options)
        cdk.Tags.of(self).add("rekindle:stack", name)
        template = json.loads(Path(package, "sam.json").read_text(encoding="utf-8"))
        code = assets.Asset(self, "Bundle", path=str(Path(package, "deployment.zip")))
        self.template_options.description = template["Description"]
        self.template_options.transforms = [template["Transform"]]
        self._parameters(template["Parameters"], parameters or {})
        conditions = self._conditions(template["Conditions"])
        uri = {"Bucket": self.resolve(code.s3_bucket_name), "Key": code.s3_object_key}
        shared = _shared(template.get("Globals", {}))
        for logical_id, resource in template["Resources"].items():
            if resource["Type"] == FUNCTION:
                resource["Properties"]["CodeUri"] = uri
                own = resource["Properties"].setdefault("Environment", {}).setdefault("Variables", {})
                resource["Properties"]["Environment"]["Variables"] = {**shared, **own}
            made = cdk.CfnResource(self, logical_id, type=resource["Type"])
            made.override_logical_id(logical_id)
            for word, value in resource.items():
                if word != "Type":
                    made.add_override(word, value)
        for logical_id, reported in template["Outputs"].items():
            output = cdk.CfnOutput(
                self,
                f"Output{logical_id}",
                value=cdk.Token.as_string(reported["Value"]),
                description=reported.get("Description"),
                condition=conditions.get(reported.get("Condition", "")),
            )
            output.override_logical_id(logical_id)

    def _parameters(self, declared: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        if unknown := sorted(set(given) - set(declared)):
            raise ValueError(
                f"the template has no parameter {', '.join(unknown)}; it has {', '.join(sorted(declared))}"
            )
        for name, about in declared.items():
            if foreign := sorted(set(about) - set(WORDS)):
                raise ValueError(f"the parameter {name} has {', '.join(foreign)}, which this stack does not carry over")
            known = {WORDS[word]: value for word, value in about.items()}
            if name in given:
                value = given[name]
                known["default"] = ",".join(value) if isinstance(value, (list, tuple)) else value
            if "allowed_values" in known:
                known["allowed_values"] = [str(value) for value in known["allowed_values"]]
            cdk.CfnParameter(self, name, **known).override_logical_id(name)

    def _conditions(self, declared: Mapping[str, Any]) -> dict[str, Any]:
        made = {name: cdk.CfnCondition(self, name) for name in declared}
        for name, expression in declared.items():
            made[name].override_logical_id(name)
            made[name].expression = _expression(expression, made)
        return made


def _expression(expression: Mapping[str, Any], made: Mapping[str, Any]) -> Any:
    ((word, value),) = expression.items()
    if word == "Condition":
        return made[value]
    if word == "Fn::Equals":
        return cdk.Fn.condition_equals(value[0], value[1])
    parts = [_expression(member, made) for member in value] if word in ("Fn::Not", "Fn::And", "Fn::Or") else []
    if word == "Fn::Not":
        return cdk.Fn.condition_not(parts[0])
    if word == "Fn::And":
        return cdk.Fn.condition_and(*parts)
    if word == "Fn::Or":
        return cdk.Fn.condition_or(*parts)
    raise ValueError(f"a condition uses {word}, which this stack does not carry over")


def _shared(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """Globals' environment, which the CDK has no section for. Source: SAM guide, Globals: maps are merged."""
    functions = section.get("Function", {})
    if set(section) - {"Function"} or set(functions) - {"Environment"}:
        raise ValueError("Globals hold more than the functions' environment, which this stack does not carry over")
    variables: Mapping[str, Any] = functions.get("Environment", {}).get("Variables", {})
    return variables
