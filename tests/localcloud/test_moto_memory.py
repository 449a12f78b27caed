"""What is remembered of moto is what moto would say anew."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import moto.core.responses
import pytest
from moto.backends import get_backend
from moto.core.base_backend import BaseBackend
from moto.core.serialize import AttributePickerContext, XFormedAttributePicker
from moto.core.utils import get_service_model
from moto.moto_api._internal import mock_random
from moto.moto_api._internal.moto_random import MotoRandom
from moto.sagemaker.responses import SageMakerResponse

from localcloud.aws.moto_memory import remember
from localcloud.cloud import ACCOUNT_ID, REGION, Cloud

SERVICES = ("dynamodb", "events", "s3", "sagemaker", "sqs", "ssm")


@contextmanager
def remembering() -> Iterator[None]:
    with ExitStack() as stack:

        def patch(owner: Any, name: str, value: Any) -> None:
            before = owner.__dict__[name]
            setattr(owner, name, value)
            stack.callback(setattr, owner, name, before)

        remember(patch)
        yield


def urls(service: str) -> dict[str, Any]:
    places: Any = get_backend(service)  # type: ignore[call-overload]
    account = places[ACCOUNT_ID]
    return dict(account["aws" if service == "s3" else REGION].urls)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_is_found_under_the_same_urls(service: str) -> None:
    before = list(urls(service))
    with remembering():
        assert list(urls(service)) == before == list(urls(service))
    assert before


def _shapes(service: str) -> Iterator[tuple[str, Any]]:
    """Every member of every answer, some levels down, as moto's serialiser walks them."""
    model = get_service_model(service)

    def walk(shape: Any, depth: int) -> Iterator[tuple[str, Any]]:
        if shape is None or depth == 0:
            return
        if shape.type_name == "structure":
            for key, member in shape.members.items():
                member.parent = shape
                yield key, member
                yield from walk(member, depth - 1)
        elif shape.type_name == "list":
            yield from walk(shape.member, depth - 1)
        elif shape.type_name == "map":
            yield from walk(shape.value, depth - 1)

    for operation in model.operation_names:
        yield from walk(model.operation_model(operation).output_shape, 3)


class Parameter:
    """Named as the beginning of some keys of SSM is: moto leaves the class's name out."""


class Aliased:
    class Meta:
        serialization_aliases = {"Name": "other_name"}  # noqa: RUF012  as moto reads it


@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("owner", [{}, Parameter(), Aliased()], ids=["dict", "object", "aliased"])
def test_a_field_is_looked_for_under_the_same_names_in_the_same_order(service: str, owner: object) -> None:
    picker, seen = XFormedAttributePicker(), 0
    for key, shape in _shapes(service):
        context = AttributePickerContext(obj=owner, key=key, shape=shape)
        anew = list(dict.fromkeys(picker.get_possible_keys(context)))
        with remembering():
            for _ in range(2):
                assert list(dict.fromkeys(picker.get_possible_keys(context))) == anew, key
        seen += 1
    assert seen > 10


def test_the_names_of_one_class_of_objects_are_not_those_of_another() -> None:
    key, shape = next((key, shape) for key, shape in _shapes("ssm") if key.startswith("Parameter"))
    with remembering():
        picker = XFormedAttributePicker()
        named = [
            set(picker.get_possible_keys(AttributePickerContext(obj=owner, key=key, shape=shape)))
            for owner in ({}, Parameter(), {})
        ]
    assert named[0] == named[2]
    assert named[0] < named[1]


def test_what_a_cloud_adds_to_moto_is_remembered_with_it(cloud: Cloud) -> None:
    assert "describe_cluster" in moto.core.responses.method_names_from_class(SageMakerResponse)
    assert cloud.client("sagemaker").list_clusters()["ClusterSummaries"] == []


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("digits", [False, True])
def test_random_names_are_as_long_and_of_the_same_characters(digits: bool, lower: bool) -> None:
    pattern = f"[a-z{'' if lower else 'A-Z'}{'0-9' if digits else ''}]{{400}}"
    with remembering():
        drawn = [mock_random.get_random_string(400, include_digits=digits, lower_case=lower) for _ in range(2)]
    assert all(re.fullmatch(pattern, one) for one in drawn)
    assert drawn[0] != drawn[1]


def test_a_closed_cloud_leaves_moto_as_it_was() -> None:
    def state() -> list[object]:
        return [
            moto.core.responses.method_names_from_class,
            BaseBackend.__dict__["urls"],
            XFormedAttributePicker.__dict__["get_possible_keys"],
            MotoRandom.__dict__["get_random_string"],
        ]

    before = state()
    with Cloud():
        assert all(one is not other for one, other in zip(state(), before, strict=True))
    assert state() == before
