"""`python -m infra.smoke --stage STAGE`: fail one cheap training job on purpose, and watch it come back.

Runs for about twenty minutes and costs a few cents: two starts of one small instance.
"""

from __future__ import annotations

import argparse
import sys
import threading
import uuid
from collections.abc import Sequence
from typing import Any

from infra.preflight.checks import read_stack
from infra.session import SessionError, open_session
from infra.smoke.run import HOURLY, Smoke, SmokeTarget
from infra.target_stack import DeploymentError, TargetStack, stack_name

# AWS's own training image for CPUs: Python, NumPy and boto3 are in it. Source: AWS Deep Learning Containers, available
# images; the account is the same in most Regions, and --image names another one.
_IMAGE = "763104351884.dkr.ecr.{region}.amazonaws.com/pytorch-training:2.5.1-cpu-py311-ubuntu22.04-sagemaker"


class NotReady(Exception):
    """The account lacks something that the test needs; the message says what to do."""


def place_of(target: TargetStack, *, role: str | None, image: str | None, instance: str, policy: str) -> SmokeTarget:
    """Where the test would run.

    Raises:
        NotReady: no stack, no training role, or the role's tag is missing.
    """
    from botocore.exceptions import ClientError

    from rekindle.client.api import Client, signer

    if target.existing is None:
        raise NotReady(f"there is no stack {target.stack}: make deploy first")
    outputs = {output["OutputKey"]: output["OutputValue"] for output in target.existing.get("Outputs", [])}
    named = target.listed("TrainingRoleArns")
    chosen = role or (named[0] if named else None)
    if chosen is None or chosen not in named:
        raise NotReady("no training role may be used: deploy with --parameter TrainingRoleArns=<ARN of a role>")
    name = chosen.rpartition("/")[2]
    try:
        tags = target.client("iam").list_role_tags(RoleName=name)["Tags"]
    except ClientError as err:
        raise NotReady(f"the tags of the role {name} cannot be read: {err}") from err
    prefix = next((tag["Value"].strip("/") for tag in tags if tag["Key"] == "rekindle-mailbox"), "")
    if not prefix:
        raise NotReady(f"aws iam tag-role --role-name {name} --tags Key=rekindle-mailbox,Value=smoke (docs/deploy.md)")
    url = outputs["ApiUrl"].rstrip("/")
    return SmokeTarget(
        stack=target.stack,
        client=target.client,
        api=Client(url=url, sign=signer(url)),
        outputs=outputs,
        role=chosen,
        prefix=prefix,
        image=image or _IMAGE.format(region=target.region),
        instance=instance,
        policy=policy,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Command line. Returns 0 when all checks pass, else 1, with lines that begin with PROBLEM or error."""
    from botocore.exceptions import BotoCoreError, ClientError

    from rekindle.client.errors import CliError

    parser = argparse.ArgumentParser(prog="python -m infra.smoke", description=__doc__)
    parser.add_argument("--stage", default="prod")
    parser.add_argument("--region", help="AWS Region; the profile's when not given")
    parser.add_argument("--role", help="a role of TrainingRoleArns; the first when not given")
    parser.add_argument("--image", help="a training image in ECR with python3 and boto3; AWS's own for CPUs by default")
    parser.add_argument("--instance", default="ml.m5.large", choices=sorted(HOURLY))
    parser.add_argument("--policy", default="default", help="the policy that protects the job")
    args = parser.parse_args(argv)
    try:
        target: Any = read_stack(open_session(args.region), stack_name(args.stage), package=None, parameters={})
        place = place_of(target, role=args.role, image=args.image, instance=args.instance, policy=args.policy)
        name = f"rekindle-smoke-{uuid.uuid4().hex[:8]}"
        smoke = Smoke(place, name, pause=threading.Event().wait, say=lambda text: print(text, flush=True))
        return 0 if smoke.run() else 1
    except (NotReady, DeploymentError, SessionError, CliError, BotoCoreError, ClientError) as err:
        print(f"error: {err}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
