"""From the bytes of a file to a JSON object or a text, with every fault of the file as a finding. Pure.

Python's own JSON reader takes what AWS does not (NaN) and lets the later of two equal names win: both are refused here.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from rekindle.doctor.base.checks import SBATCH, Area, row
from rekindle.doctor.base.findings import Finding, quoted

MAX_FILE_BYTES: Final = (
    4 * 1024 * 1024
)  # sbatch's own default limit (slurm.conf, max_script_size); far above a request's
MAX_DEPTH: Final = 50  # a CreateCluster request is 8 deep

_FILE: Final = row(
    "file",
    Area.FILES,
    SBATCH,
    "The file is there, regular, not larger than 4 MiB.\n\nNo other check can run without it.",
)
_JSON: Final = row(
    "json",
    Area.FILES,
    "RFC 8259",
    "UTF-8, JSON, an object; no NaN, no name twice, not deeper than 50.\n\nReaders disagree on what such a file says.",
    twin="JSON parse",
)
_KIND: Final = row(
    "file-kind",
    Area.FILES,
    "botocore, DescribeCluster; ParallelCluster, CloudFormation and SageMaker guides",
    "It is the file that its option asks for.\n\nAnother one, however right, would be reported member by member.",
)
# Members at the top level that make a file known; the option that takes it, or none; what it is.
_KINDS: Final[tuple[tuple[frozenset[str], str | None, str], ...]] = (
    (
        frozenset(("HeadNode", "Scheduling")),
        None,
        "a ParallelCluster configuration: `pcluster create-cluster --dryrun true` checks it",
    ),
    (
        frozenset(("ClusterArn", "ClusterStatus")),
        None,
        "DescribeCluster's answer, not a request: look at the cluster itself with --live NAME",
    ),
    (
        frozenset(("AWSTemplateFormatVersion", "Resources")),
        None,
        "a CloudFormation template: give the properties of its cluster alone",
    ),
    (frozenset(("controller_group", "worker_groups")), "--provisioning", "provisioning_parameters.json"),
    (frozenset(("ClusterName", "InstanceGroups")), "--config", "a CreateCluster request"),
)
_YAML_NAME: Final = re.compile(r"^[\"']?([A-Za-z_]\w{0,80})[\"']?:(?=\s|$)", re.MULTILINE)


class Unreadable(Exception):
    """The file cannot be used; carries the one finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.message)
        self.finding = finding


def read_file(path: Path, label: str) -> bytes:
    """The bytes of a regular file. Raises: Unreadable."""
    try:
        # Not blocking: opening a pipe without a writer would wait for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise Unreadable(_FILE.error(label, "is no regular file"))
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as err:
        raise Unreadable(_FILE.error(label, f"cannot be read: {err.strerror or type(err).__name__}")) from err
    except ValueError as err:  # a NUL in the name
        raise Unreadable(_FILE.error(label, "cannot be read: this is no file's name")) from err
    if len(content) > MAX_FILE_BYTES:
        raise Unreadable(_FILE.error(label, f"is larger than {MAX_FILE_BYTES} bytes"))
    return content


def of_its_kind(content: bytes, label: str, option: str) -> bytes:
    """The content, unless it is known for another file than the one that the option asks for. Raises: Unreadable."""
    text = content.decode("utf-8", "replace").lstrip("\ufeff")
    is_json = text.lstrip().startswith("{")
    names = json_object(content, label).keys() if is_json else set(_YAML_NAME.findall(text))
    for members, its_option, what in _KINDS:
        if members <= names and (not is_json or its_option != option):
            advice = "" if its_option is None else f": the doctor reads it as JSON, with {its_option}"
            raise Unreadable(_KIND.error(label, f"is {what}{advice}"))
    return content


def json_object(content: bytes, label: str) -> dict[str, Any]:
    """The JSON object in a file. Raises: Unreadable, and nothing else, for whatever bytes are given."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise Unreadable(_JSON.error(label, f"is not JSON: byte {err.start} is no UTF-8 text")) from err

    def no_constant(name: str) -> float:
        raise Unreadable(_JSON.error(label, f"holds {name}, which is not JSON"))

    def pairs(items: Iterable[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in items:
            if name in found:
                raise Unreadable(_JSON.error(label, f"names {quoted(name)} twice in one object; only one would count"))
            found[name] = value
        return found

    try:
        value = json.loads(text, parse_constant=no_constant, object_pairs_hook=pairs)
    except json.JSONDecodeError as err:
        where = f"line {err.lineno}, column {err.colno}"
        raise Unreadable(_JSON.error(label, f"is not JSON: {err.msg} at {where}")) from err
    except (ValueError, RecursionError) as err:  # a whole number of thousands of digits, brackets without end
        raise Unreadable(_JSON.error(label, "is not JSON that can be read: too deep, or a number too long")) from err
    if not isinstance(value, dict):
        raise Unreadable(_JSON.error(label, "must hold a JSON object"))
    if _depth(value) > MAX_DEPTH:
        raise Unreadable(_JSON.error(label, f"is nested more than {MAX_DEPTH} deep"))
    return value


def _depth(value: object) -> int:
    deepest, pending = 0, [(value, 1)]
    while pending:
        one, depth = pending.pop()
        deepest = max(deepest, depth)
        inner: Iterable[object] = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        pending += [(item, depth + 1) for item in inner]
    return deepest
