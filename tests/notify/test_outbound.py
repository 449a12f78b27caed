"""Where requests may go, and how long they may take."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime

import pytest

from chalicelib.channels import standard_webhooks
from chalicelib.channels.outbound import HttpResult, may_reach, post
from chalicelib.domain.model.errors import DependencyUnavailable, InvalidSettings, Permanent
from tests.canary import CANARY, WEBHOOK_SECRET
from tests.notify.receiver import Receiver

PUBLIC = ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"]
PRIVATE = [
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "127.0.0.1",
    "::1",
    "fc00::1",
    "100.64.0.1",
    "::ffff:10.0.0.1",
    "192.0.0.192",
]
NEVER = [
    "169.254.169.254",
    "169.254.170.2",
    "fe80::1",
    "fd00:ec2::254",
    "::ffff:169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::a9fe:a9fe",
    "2002:a9fe:a9fe::1",
    "2001:0:a9fe:a9fe::1",
    "::ffff:0:169.254.169.254",
    "::169.254.169.254",
    "fec0::1",
    "0.0.0.0",  # noqa: S104  an address to refuse
    "::",
    "224.0.0.1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PUBLIC + PRIVATE + NEVER)
def test_private_addresses_need_leave_and_metadata_is_never_reached(address: str) -> None:
    one = ipaddress.ip_address(address)
    assert may_reach(one, private=False) is (address in PUBLIC)
    assert may_reach(one, private=True) is (address not in NEVER)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "https:///path",
        "example.com",
        f"https://user:{CANARY}@example.com/",
        "https://example.com:99999/",
        "http://[::1",
        "https://exa mple.com/",
        "https://example.com/\r\nHost: other",
    ],
)
def test_what_is_no_plain_address_is_refused(url: str) -> None:
    with pytest.raises(Permanent) as caught:
        post(url, b"", {}, private=True)
    assert CANARY not in str(caught.value)


def test_this_machine_needs_leave(receiver: Receiver) -> None:
    with pytest.raises(Permanent, match="not to be sent to"):
        post(receiver.url, b"{}", {})
    with pytest.raises(Permanent, match="not to be sent to"):
        post(receiver.url.replace("127.0.0.1", "localhost"), b"{}", {})
    assert not receiver.got
    assert post(receiver.url + f"/{CANARY}?a=b", b"{}", {}, private=True).status == 200
    assert receiver.got[0].path == f"/{CANARY}?a=b"


def test_plain_http_goes_nowhere_else() -> None:
    with pytest.raises(Permanent, match="use https"):
        post("http://10.255.255.1/", b"", {}, private=True)


def test_a_name_that_does_not_exist_may_exist_later() -> None:
    with pytest.raises(DependencyUnavailable):
        post("https://name.invalid/", b"", {})


def test_a_closed_port_and_a_path_with_a_secret_tell_the_host_alone(receiver: Receiver) -> None:
    with Receiver() as gone:
        url = gone.url
    with pytest.raises(DependencyUnavailable) as caught:
        post(f"{url}/{CANARY}", b"", {}, private=True)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("what", ["slow", "drip", "close"])
def test_no_receiver_holds_us_longer_than_agreed(receiver: Receiver, what: str) -> None:
    receiver.plan.append(what)
    with pytest.raises(DependencyUnavailable):
        post(receiver.url, b"{}", {}, private=True, total_s=0.5)
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("120", 120.0),
        ("Wed, 15 Jul 2026 09:31:00 GMT", 60.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("²", None),
        ("99999999999", None),
    ],
)
def test_retry_after_is_read_in_both_forms(text: str, seconds: float | None) -> None:
    answer = HttpResult(status=503, headers={"retry-after": text})
    assert answer.retry_after_s(datetime(2026, 7, 15, 9, 30, tzinfo=UTC)) == seconds


def test_signatures_fit_the_specification_s_own_example() -> None:
    """Source: the test vector of the Standard Webhooks libraries."""
    key = standard_webhooks.key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", name="x")
    given = {"message_id": "msg_p5jXN8AQM9LWM0D4loKWxJek", "timestamp": "1614265330", "body": b'{"test": 2432232314}'}
    wanted = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    assert standard_webhooks.sign(key, **given) == wanted
    assert standard_webhooks.is_signed(key, **given, header=f"v1a,xx v1,AAAA {wanted}")
    assert not standard_webhooks.is_signed(key, **given, header="v1,AAAA")
    assert not standard_webhooks.is_signed(key, **{**given, "body": b"{}"}, header=wanted)
    assert not standard_webhooks.is_signed(key, **{**given, "timestamp": "1614265331"}, header=wanted)


@pytest.mark.parametrize("secret", ["whsec_!", "whsec_c2hvcnQ=", "short", f"whsec_{WEBHOOK_SECRET}"])
def test_a_secret_that_is_no_key_is_named_and_never_told(secret: str) -> None:
    with pytest.raises(InvalidSettings) as caught:
        standard_webhooks.key_of(secret, name="hook")
    assert caught.value.field == "secrets.hook"
    assert CANARY not in str(caught.value)
