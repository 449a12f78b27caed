"""What of a submission's environment looks like a secret, and is therefore kept nowhere: where a copy gets it from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rekindle.protocol.cluster.documents import JobSpec
from rekindle.slurm_agent.base.ports import SlurmRefused, SlurmUnavailable
from rekindle.slurm_agent.copies.compare import LEFT_OUT
from rekindle.slurm_agent.copies.hashes import ValueHashes, surely_differ
from rekindle.slurm_agent.copies.spec import ids_of
from rekindle.slurm_agent.files.user_files import UserFiles
from rekindle.slurm_agent.files.workers import Hangs
from rekindle.slurm_agent.reading import comment

KEY: Final = "secrets"  # of the comment: `secrets=without`, or `secrets=FILE`
WITHOUT: Final = "without"
MAX_FILE_BYTES: Final = 64 * 1024


def secrets_of(spec: JobSpec, whole: Mapping[str, str] | None, files: UserFiles) -> Mapping[str, str]:
    """The variables that the spec leaves out.

    whole: the old job's environment, while slurmctld knows it; after that they come as the job's comment says, from its
    user's own file of lines NAME=value, or not at all.

    Raises: SlurmRefused where one of them would be lost without a word of its user; SlurmUnavailable.
    """
    if not spec.left_out:
        return {}
    found = whole
    if found is None:
        asked = comment.parse(spec.options.get("comment") or "")
        said = dict(asked.others).get(KEY, "") if asked is not None else ""
        if said == WITHOUT:
            return {}
        found = _of_file(said, spec, files) if said.startswith("/") else {}
    lost = [name for name in spec.left_out if name not in found]
    if lost:
        text = f"sbatch: the secrets {', '.join(lost)} of the submission are not kept, and cannot be read any more"
        raise SlurmRefused(f"{text[:400]}: give {KEY}=FILE or {KEY}={WITHOUT} in the comment")
    return {name: found[name] for name in spec.left_out}


def other_secrets(spec: JobSpec, copy: Mapping[str, str], hashes: ValueHashes) -> tuple[str, ...]:
    """The variables that the spec leaves out and that have another value in the copy's environment. Pure."""
    there = {name: hashes.of(name, copy[name]) for name in spec.left_out if name in copy}
    before = {name: spec.shown.get(f"{LEFT_OUT}{name}") or given for name, given in there.items()}
    return tuple(name for name, given in there.items() if surely_differ(before[name], given))


def _of_file(path: str, spec: JobSpec, files: UserFiles) -> Mapping[str, str]:
    """Read as the job's user."""
    try:
        raw = files.read(spec.user, path, MAX_FILE_BYTES, *ids_of(spec)) or b""
    except Hangs as err:
        raise SlurmUnavailable(f"sbatch: {err}"[:300]) from err
    except OSError as err:
        raise SlurmRefused(f"sbatch: the file of secrets {path} cannot be read: {err}"[:300]) from err
    pairs = (line.removeprefix("export ").partition("=") for line in raw.decode("utf-8", "replace").splitlines())
    return {name.strip(): given.strip().strip("\"'") for name, equals, given in pairs if equals}
