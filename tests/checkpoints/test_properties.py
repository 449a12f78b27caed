"""Whatever lies in a bucket: discovery answers, and vouches for nothing that is not whole."""

from __future__ import annotations

import io
import pickle
import pickletools
from contextlib import suppress
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from rekindle.checkpoints.discover import discover
from rekindle.checkpoints.found import Format
from rekindle.checkpoints.marks import QuarantineMark
from rekindle.checkpoints.names import is_one_file, read_name
from rekindle.checkpoints.pickles import is_cut_short, numbers_of, tokens
from rekindle.checkpoints.sharded import shards_of
from rekindle.protocol.wire import MAX_STEP, MailboxError
from tests.checkpoints.made import LAYOUTS, Shelf, layout
from tests.sizes import examples

WORDS = [
    *(
        "checkpoint-12",
        "checkpoint_3",
        "step-7",
        "global_step4",
        "epoch=0-step=9.ckpt",
        "tmp-checkpoint-5",
        "last.ckpt",
    ),
    *(
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
        "latest",
        "trainer_state.json",
        "meta.pt",
        "optimizer.pt",
        "out",
        "last.ckpt",
    ),
    *("model.safetensors", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "random_states_1.pkl"),
    *("mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt", "pytorch_model_fsdp_0", "step_5.pt"),
    *("zero_pp_rank_99999999999999_mp_rank_7777777777_optim_states.pt", "..", "", "rng_state_999999.pth", "ckpt_8.npz"),
]
PATHS = st.lists(st.sampled_from(WORDS) | st.text(max_size=8), min_size=1, max_size=4).map("/".join)
BYTES = st.binary(max_size=200) | st.sampled_from(
    [
        b"PK\x03\x04",
        b"PK\x05\x06" + b"\0" * 18,
        b"\xff" * 8,
        b"\x80\x02.",
        b'{"weight_map": {"a": 1}}',
        b'{"global_step": 5}',
    ]
)


@given(st.dictionaries(PATHS, BYTES, max_size=12))
@settings(max_examples=examples(150), deadline=None)
def test_no_listing_and_no_bytes_make_it_raise(files: dict[str, bytes]) -> None:
    shelf = Shelf(files)
    for found in discover(shelf.listing, shelf.read):
        assert found.files.items() <= shelf.listing.items()
        assert found.step is None or 0 <= found.step <= MAX_STEP
        assert found.format is not Format.UNKNOWN or found.problems
        assert 0 not in found.files.values() or not found.root.endswith(".pt") or found.problems


@given(st.dictionaries(PATHS, st.integers(-5, 2**70), max_size=12), st.binary(max_size=99), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_no_sizes_and_no_lies_of_the_reader_make_it_raise(sizes: dict[str, int], body: bytes, is_none: bool) -> None:
    discover(sizes, lambda *_: None if is_none else body)


@given(st.sampled_from(sorted(LAYOUTS)), st.data())
@settings(max_examples=examples(150), deadline=None)
def test_a_file_cut_short_anywhere_is_never_vouched_for(name: str, data: st.DataObject) -> None:
    files = layout(name)
    path = data.draw(st.sampled_from([path for path in sorted(files) if _counts(path)]))
    keep = data.draw(st.integers(0, len(files[path]) - 1))
    files[path] = files[path][:keep]
    shelf = Shelf(files)
    hit = [item for item in discover(shelf.listing, shelf.read) if path in item.files]
    assert len(hit) == 1
    assert hit[0].problems, (path, keep)


def _counts(path: str) -> bool:
    """Files whose length some rule knows. A JSON text without its last line feed is whole."""
    return path.endswith((".metadata", ".pt", ".pth", ".bin", ".pkl", ".ckpt", ".npz", ".safetensors", ".distcp"))


@given(st.sampled_from(sorted(LAYOUTS)), st.randoms())
@settings(max_examples=examples(50), deadline=None)
def test_the_order_of_the_listing_does_not_matter(name: str, random: Any) -> None:
    files = list(layout(name).items())
    there = Shelf(dict(files))
    random.shuffle(files)
    mixed = Shelf(dict(files))
    assert discover(mixed.listing, mixed.read) == discover(there.listing, there.read)


@given(st.text(max_size=60))
def test_any_name_is_read(name: str) -> None:
    is_one_file(name)
    number = read_name(name).number
    assert number is None or 0 <= number <= MAX_STEP


@given(st.binary(max_size=400))
@settings(max_examples=examples(150), deadline=None)
def test_any_bytes_are_walked_as_a_pickle(raw: bytes) -> None:
    for prefix in (b"", b"\x80\x02", b"\x80\x04"):
        list(tokens(prefix + raw))
        shards_of(prefix + raw)
        numbers_of(prefix + raw, ("step",))


@given(
    st.recursive(
        st.integers(-(2**70), 2**70) | st.text(max_size=5) | st.none(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=20,
    ),
    st.integers(0, 5),
)
@settings(deadline=None)
def test_the_walk_names_the_texts_and_numbers_of_real_pickles(value: Any, protocol: int) -> None:
    raw = pickle.dumps({"global_step": 7, "global_step_again": "global_step", "rest": value}, protocol=protocol)
    assert 7 in numbers_of(raw, ("global_step",)).get("global_step", set()) or protocol == 0
    assert len(list(tokens(raw))) <= len(list(pickletools.genops(io.BytesIO(raw))))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_mark_or_one_clear_error(raw: bytes) -> None:
    with suppress(MailboxError):
        QuarantineMark.from_json(raw)


def test_a_pickle_cut_short_at_any_byte_is_seen_in_every_protocol() -> None:
    """Also where the last byte that is left is a full stop, which ends a whole one."""
    content = {
        "offset": 46,
        "texts": [f"shard.{n}.distcp" for n in range(40)],
        "large": b"." * 100_000,
        "numbers": 0x2E2E2E,
    }
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        raw = pickle.dumps(content, protocol)
        assert not is_cut_short(raw)
        stops = [at + 1 for at, byte in enumerate(raw[:-1]) if byte == 0x2E]
        assert stops
        cut = [*range(40), *stops[:60], *stops[-60:], len(raw) - 1]
        assert [keep for keep in cut if not is_cut_short(raw[:keep])] == []
