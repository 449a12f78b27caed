"""When a life of an attempt ended: with the claim of the next one that is held, by the store's clock."""

from __future__ import annotations

from datetime import UTC, datetime

from chalicelib.aws.s3.objects import S3Objects, lives_in
from rekindle.protocol.lives import Claim, Standing
from rekindle.protocol.wire import Place
from tests.adapters.test_mailbox_contract import BUCKET, PREFIX, s3_side


def claim(life: int, standing: Standing) -> Claim:
    return Claim(
        job_id="lm-7b",
        attempt="lm-7b-a3",
        life=life,
        rank=0,
        standing=standing,
        process="boot/pid:[1] 7 99",
        at=datetime(2026, 11, 20, tzinfo=UTC),
    )


def test_a_life_ends_with_the_next_claim_that_is_held(aws: None) -> None:
    _, desk = s3_side()
    claims = [
        claim(0, Standing.HELD),
        claim(1, Standing.REFUSED),
        claim(3, Standing.HELD),
        claim(4, Standing.CONTESTED),
    ]
    for one in claims:
        desk.put(one.key, one.to_json())
    desk.put(claim(2, Standing.HELD).key, b"{rubbish")
    lives = lives_in(S3Objects(desk.client), Place(bucket=BUCKET, path=PREFIX))
    began = desk.client.head_object(Bucket=BUCKET, Key=f"{PREFIX}/{claims[2].key}")["LastModified"]
    assert lives.ended_at("lm-7b-a3", 0) == lives.ended_at("lm-7b-a3", 2) == began
    assert lives.ended_at("lm-7b-a3", 3) is None, "the next one may still be refused"
    assert lives.ended_at("lm-7b-a4", 0) is None
