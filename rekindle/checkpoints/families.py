"""Which checkpoints are the run's own: a folder also holds samples, averaged weights, the best so far, other runs'.

Names that differ only in their step belong to one family. The run's own is that of what it resumed from, or of its
manifests; otherwise the one that holds an optimizer's state. Where two could be it, none is: the reason is reported,
and a person decides.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rekindle.checkpoints.counts import Counted, closest
from rekindle.checkpoints.found import Format, Found, limited
from rekindle.checkpoints.names import plain
from rekindle.checkpoints.shapes import Shape, Siblings, shape_beside, shape_of
from rekindle.checkpoints.verdict import Evidence, texts, verdict

_NUMBER: Final = r"(?:\d{1,3}(?:[_,]\d{3})+(?!\d)|\d+(?:\.\d{1,3}(?=[km]))?(?:[km](?![a-z\d]))?)"
# The number of a step or an epoch, or both (fairseq's `checkpoint_1_2000.pt` beside `checkpoint1.pt`), and what parts
# it from its word. `model-7b` and `model-125m` are names of runs.
_COUNT: Final = re.compile(
    rf"(?<![a-z])((?:global[_-]?step|steps?|iter(?:ation)?s?|ep(?:och)?|(?<=-)ba)(?=[=_-]?\d)"
    rf"|(?:checkpoint|chkpt|ckpt|snapshot|state)(?=[=_-]?{_NUMBER}(?![\da-z]))"
    rf"|(?:model|weights|params)(?=[=_-]?\d+(?![\da-z])))[=_-]?{_NUMBER}"
    r"(?:_\d+(?=(?:[_-](?:rank|shard)[=_-]?0+)?(?:\.\w+$|$)))?",
    re.IGNORECASE,
)
# Of a folder above: `step-100/checkpoint.pt`. Not `model-7b`, which is the name of a run.
_STEP_FOLDER: Final = re.compile(
    rf"(?<![a-z])((?:global[_-]?step|steps?|iter(?:ation)?s?|ep(?:och)?|(?<=-)ba)[=_-]?){_NUMBER}(?![\da-z])",
    re.IGNORECASE,
)
_BARE: Final = re.compile(rf"^{_NUMBER}(?=\.\w+$|$)", re.IGNORECASE)
# Another file of the same step or of the newest, by Lightning: the name without it was taken.
_AGAIN: Final = re.compile(r"-v\d+(?=\.\w+$|$)")
# What says when or why a checkpoint of the same run was saved. `last` and `latest` are the newest of the others.
_NEUTRAL: Final = re.compile(
    r"(?<![a-z])(?:periodic|emergency|forensic|signal|last|latest|preempt(?:ed|ion)?|interrupt(?:ed)?|sigterm|auto|exit)"
    r"(?![a-z])",
    re.IGNORECASE,
)
# Folders that a run makes anew at each start: attempts, Lightning's versions, dates and times.
_START: Final = re.compile(r"(?:attempt|version|restart|retry)[=_-]?\d+|(?<!\d)\d+(?:[-_T:.]\d+)+", re.IGNORECASE)
# Beside the run: nothing that it could go on from, or not the state that it had.
_BESIDE: Final = re.compile(
    r"(?<![a-z])(?:samples?|ema|swa|best|eval(?:uations?)?|exports?|merged|weights[=_-]?only|optim(?:izer)?s?)(?![a-z])",
    re.IGNORECASE,
)
_BESIDE_NAME: Final = re.compile(
    r"(?<![a-z])(?:averaged?|avg|opt|images?|inference|predictions?|teacher|reference|pretrained)(?![a-z])",
    re.IGNORECASE,
)
# A metric (`name=value`, or a usual one's name and a decimal), and what is counted beside the steps.
_METRIC: Final = re.compile(
    r"(?<![a-z])((?:[a-z][a-z_]*=|(?:(?:train|valid|val|validation|eval|test|dev)[_-])?(?:loss|acc|accuracy|ppl|perplexity"
    r"|bleu|wer|cer|f1|auc|iou|miou|psnr|fid|mse|mae|score|reward)[_-]?(?=-?\d+\.\d)))-?\d+(?:\.\d+)*(?:e-?\d+)?"
    r"|(?<![a-z])((?:consumed[_-])?tokens?[_-]?|consumed[_-]samples?[_-]?)\d+(?:\.\d+)?[kmbt]?(?![a-z])",
    re.IGNORECASE,
)
# A day, with or without a time. In eight figures without a mark between them it is told apart once counts are known.
_DAY: Final = (
    r"(?<!\d)20\d\d%s(?:0[1-9]|1[0-2])%s(?:0[1-9]|[12]\d|3[01])"
    r"(?:[-_T. ]?(?:[01]\d|2[0-3])[-_:.h]?[0-5]\d(?:[-_:.m]?[0-5]\d)?)?(?!\d)"
)
_DATED: Final = re.compile(_DAY % ("[-_.]", "[-_.]"))
_DATED_IN_A_ROW: Final = re.compile(_DAY % ("", ""))
_ENDS: Final = re.compile(r"^[=_.-]+|[=_-]+(?=\.\w+$|$)")
_NO_NUMBER: Final = re.compile(r"(?:checkpoint|ckpt|snapshot)?", re.IGNORECASE)


MAX_NAMED: Final = 4


@dataclass(frozen=True, slots=True)
class Family:
    """Checkpoints whose names differ only in their step, of one format."""

    folder: str
    name: str
    format: Format

    def __str__(self) -> str:
        return f"{self.folder}/{self.name}" if self.folder else self.name


def side_state_words(roots: Iterable[str]) -> dict[str, str | None]:
    """For each path the word by which it is not the run's own state, such as `ema`; None for none.

    What the folder of them all is called tells none of them from another: a run may be called `best-7b`.
    """
    all_ = list(roots)
    above = _common_folder(all_)
    return {root: _word_in_name(root) or _word_in_folder(root[above:]) for root in all_}


def _common_folder(roots: Sequence[str]) -> int:
    """How many characters of all of them are folders that they share."""
    shared = os.path.commonpath([root.rpartition("/")[0] for root in roots]) if roots else ""
    return len(shared) + 1 if shared else 0


def _word_in_name(root: str) -> str | None:
    name = _plain_path(root).rpartition("/")[2]
    name = _START.sub("", _METRIC.sub("", name))  # in this order: `loss=2.10-step=99` is no date
    match = _BESIDE.search(name) or _BESIDE_NAME.search(name)
    return None if match is None else match[0].lower()


def _word_in_folder(root: str) -> str | None:
    match = _BESIDE.search(_START.sub("", _METRIC.sub("", root.rpartition("/")[0])))
    return None if match is None else match[0].lower()


def of_one_run(found: Sequence[Found], like: Iterable[str] = ()) -> tuple[Found, ...]:
    """All of them, in the same order; those that are not the run's own have a problem that says why.

    like: roots, relative to the same listing, known to be the run's: its manifests', and what it resumed from.
    """
    like = set(like)
    known = {pattern_of(root) for root in like}
    joined = _joined(found)
    found = _of_its_step(_whole_by_shape(found, joined), joined, like)
    words = side_state_words(item.root for item in found)
    whole: dict[Family, list[Found]] = {}
    for item in found:
        if item.is_complete and item.step is not None:
            whole.setdefault(joined[item.root], []).append(item)
    own = {family for family in joined.values() if (family.folder, family.name) in known}
    if not own:
        own = _most_likely(whole, words)
        if len(own) > 1:
            names = " and ".join(sorted(str(family) for family in own)[:MAX_NAMED])
            why = f"which checkpoints are the run's own is not known: {names} could be"
            return tuple(_with(item, why) if item.is_complete else item for item in found)
    return tuple(_judged(item, joined[item.root], own, whole, words[item.root]) for item in found)


def _most_likely(whole: Mapping[Family, list[Found]], words: Mapping[str, str | None]) -> set[Family]:
    """Where nothing tells which family is the run's own: those that could be, rather with an optimizer's state."""
    own = {family for family, items in whole.items() if _may_be_own(items, words)}
    own = {family for family in own if any(item.has_optimizer for item in whole[family])} or own
    return {family for family in own if family.format is not Format.FOLDER} or own


def _whole_by_shape(found: Sequence[Found], joined: Mapping[str, Family]) -> tuple[Found, ...]:
    """The same; those that lack a part of the state which others of their family have, have that as a problem."""
    shapes: dict[Family, dict[str, Shape]] = {}
    for item in found:
        shape = _shape_of(item) if item.is_complete else None
        if shape is not None:
            shapes.setdefault(joined[item.root], {})[item.root] = shape
    siblings = {family: Siblings(by_root) for family, by_root in shapes.items()}
    after = []
    for item in found:
        family = joined[item.root]
        shape = shapes.get(family, {}).get(item.root)
        missing = [] if shape is None else siblings[family].missing(item.root, shape)
        after.append(replace(item, problems=limited(missing)) if missing else item)
    return tuple(after)


def _shape_of(item: Found) -> Shape | None:
    if item.root in item.files:
        return shape_beside(item.root, item.files)
    start = len(item.root) + 1 if item.root else 0
    return shape_of(path[start:] for path in item.files)


def _of_its_step(found: Sequence[Found], joined: Mapping[str, Family], weighed: Collection[str]) -> tuple[Found, ...]:
    """The same; those whose files name another step than their names do, while others of their family show that their
    script counts steps, have that as a problem. weighed: roots whose steps were weighed when they were sealed.
    """
    counted: dict[Family, dict[str, list[Counted]]] = {}
    for item in found:
        if item.is_complete and item.step is not None:
            numbers = (closest(item.step, named) for named in item.inner_steps.values())
            own = [Counted(item.step, number) for number in numbers if number is not None]
            counted.setdefault(joined[item.root], {})[item.root] = own
    after = []
    for item in found:
        family = counted.get(joined[item.root], {})
        others = [each for root, own in family.items() if root != item.root for each in own]
        if item.root in family and item.root not in weighed and any(each.is_of_step for each in others):
            wrong = verdict(Evidence(step=item.step, inner_steps=item.inner_steps, counted=others))
            item = replace(item, problems=texts(wrong))
        after.append(item)
    return tuple(after)


def _joined(found: Sequence[Found]) -> dict[str, Family]:
    """Root -> family. A name without a number (`last.ckpt`) is of the one family beside it, where there is one."""
    families = {item.root: Family(*pattern_of(item.root), item.format) for item in found}
    beside: dict[tuple[str, Format], set[Family]] = {}
    for family in families.values():
        if family.name:
            beside.setdefault((family.folder, family.format), set()).add(family)
    joined = dict(families)
    for root, family in families.items():
        if not family.name:
            near = beside.get((family.folder, family.format), set())
            near = {other for other in near if _word_in_name(other.name) is None} or near
            joined[root] = next(iter(near)) if len(near) == 1 else family
    return joined


def _may_be_own(items: Sequence[Found], words: Mapping[str, str | None]) -> bool:
    return words[items[0].root] is None and not any(item.has_weights is False for item in items)


def _judged(
    item: Found, family: Family, own: set[Family], whole: Mapping[Family, Sequence[Found]], word: str | None
) -> Found:
    """word: by which its path says that it is not the run's own state."""
    if not item.is_complete:
        return item
    if item.has_weights is False:
        return _with(item, "it holds no weights")
    if family in own:
        has_more = any(other.has_optimizer for other in whole.get(family, ()))
        if has_more and item.has_optimizer is False:
            return _with(item, "it holds no optimizer's state, which others of its name do")
        return item
    if word is not None:
        return _with(item, f"its name says that it is not the run's own state ({word})")
    return _with(item, f"it is not of the run's own checkpoints ({next(iter(own))})") if own else item


def _with(item: Found, problem: str) -> Found:
    return replace(item, problems=(*item.problems, problem))


def pattern_of(root: str) -> tuple[str, str]:
    """(folder, name) without what differs between the checkpoints of one run; no name where it had no number."""
    folder, _, name = _plain_path(root).rpartition("/")
    name = _AGAIN.sub("", _DATED.sub("", name))
    stem, counted = _COUNT.subn(r"\1#", name)
    stem, measured = _METRIC.subn(lambda match: f"{match[1] or match[2]}#", stem)
    stem, name = _DATED_IN_A_ROW.sub("", stem), _DATED_IN_A_ROW.sub("", name)
    if not counted + measured:
        stem = _BARE.sub("#", name) if _BARE.match(name) else re.sub(r"\d+(?=\D*$)", "#", name)
    stem = re.sub(r"[=_-]+(?=\.)|([=_-])[=_-]+", r"\1", _NEUTRAL.sub("", stem))
    stem = _ENDS.sub("", stem) if "#" in stem or not stem.startswith(".") else stem
    if _NO_NUMBER.fullmatch(re.sub(r"\.[a-z]\w*$", "", stem)):
        stem = ""
    return _START.sub("#", _STEP_FOLDER.sub(r"\1#", folder)), stem


def _plain_path(root: str) -> str:
    folder, slash, name = root.rpartition("/")
    return folder + slash + plain(name)
