"""A sealed checkpoint whose files are only listed: objects in S3."""

from __future__ import annotations

from dataclasses import replace

from rekindle.checkpoints.found import Read
from rekindle.checkpoints.verdict import Evidence, Fault, Problem, verdict
from rekindle.protocol.manifests import ITSELF


def sealed_in_listing(evidence: Evidence, read: Read) -> tuple[Problem, ...]:
    """The verdict on what a manifest was written for, given how its files lie there now.

    They are looked into only where they are others than were sealed: a copy in parts, or with another key, has other
    ETags. `read` takes the manifest's names.
    """
    found = verdict(evidence)
    manifest, stamps = evidence.manifest, evidence.stamps
    if manifest is None or stamps is None or all(problem.fault is not Fault.NOT_SEALED for problem in found):
        return found
    from rekindle.checkpoints.discover import inner_steps_of  # the formats' rules, which few checkpoints need

    root = manifest.root.rpartition("/")[2]
    names = {root if item.path == ITSELF else f"{root}/{item.path}": item.path for item in manifest.files}
    sizes = {path: stamps[name].bytes for path, name in names.items() if name in stamps}
    steps = inner_steps_of(root, sizes, lambda path, start, length: read(names[path], start, length))
    return verdict(replace(evidence, inner_steps=steps))
