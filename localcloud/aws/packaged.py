"""The template that is deployed, made in this process: what `make package` writes beside the bundle.

Chalice's own packager reads the app, `.chalice/config.json` and the policies, and infra's merge template is laid over
the result. Only the bundle is not built. tests/infra/test_same_functions.py holds it against the packaged file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from infra.merge import merge_template
from infra.package import BUNDLE, ROOT

STAGE: Final = "prod"  # of Chalice; every stack is made from this one (infra/package.py)


@cache
def packaged_template() -> Mapping[str, Any]:
    """The whole template, before CloudFormation transforms it. Read it only: all clouds of the process share it."""
    from botocore.session import Session
    from chalice.awsclient import TypedAWSClient
    from chalice.config import Config
    from chalice.deploy import deployer
    from chalice.deploy.appgraph import ApplicationGraphBuilder, DependencyBuilder
    from chalice.deploy.swagger import CFNSwaggerGenerator
    from chalice.package import PackageOptions, ResourceBuilder, SAMTemplateGenerator, TemplateDeepMerger
    from chalice.policy import AppPolicyGenerator
    from chalice.utils import OSUtils

    from app import app

    config = Config(
        chalice_stage=STAGE,
        config_from_disk=json.loads((ROOT / ".chalice" / "config.json").read_text(encoding="utf-8")),
        user_provided_params={"chalice_app": app},
        default_params={"project_dir": str(ROOT)},
    )
    files = OSUtils()
    steps = [
        deployer.InjectDefaults(),
        deployer.PolicyGenerator(policy_gen=AppPolicyGenerator(osutils=files), osutils=files),
        deployer.SwaggerBuilder(swagger_generator=CFNSwaggerGenerator()),
        deployer.LambdaEventSourcePolicyInjector(),
        deployer.WebsocketPolicyInjector(),
    ]
    builder = ResourceBuilder(ApplicationGraphBuilder(), DependencyBuilder(), deployer.BuildStage(steps=steps))
    aws = Session()
    aws.set_config_variable("region", "us-east-1")  # as the packaging has: it names service principals
    template = SAMTemplateGenerator(config, PackageOptions(TypedAWSClient(aws))).generate(
        builder.construct_resources(config, STAGE)
    )
    for resource in template["Resources"].values():
        if resource["Type"] == "AWS::Serverless::Function":
            resource["Properties"]["CodeUri"] = f"./{BUNDLE}"
    merged: Mapping[str, Any] = TemplateDeepMerger().merge(merge_template(), template)
    return merged
