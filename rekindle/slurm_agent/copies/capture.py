"""What is needed to submit a job again: its script, arguments, options and environment, and what of it is missing.

The script comes from the file `script` in StateSaveLocation, else from `scontrol write batch_script`, which costs a
command for each job. Its arguments stand, word by word, only in slurmctld's own state file (`job_state`: a count, then
length-prefixed strings). Up to 22.05 `Command=` joins them with blanks, so an argument with a blank in it cannot be
distinguished from two; since 23.02 it is the script's path alone, and since 25.11 `SubmitLine=` has the whole line,
joined with blanks. The environment is the file `environment` beside the script in StateSaveLocation: a count of 32 bits
in the machine's order, then NUL-terminated pairs (slurm src/slurmctld/job_mgr.c, read_data_array). Both are readable by
root or SlurmUser only; where they are not, that is reported, and never guessed.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rekindle.protocol.wire import is_text
from rekindle.slurm_agent.reading.jobs import Job

MAX_ENVIRONMENT_BYTES: Final = 4 * 1024 * 1024
MAX_SCRIPT_BYTES: Final = 4 * 1024 * 1024  # slurm.conf, SchedulerParameters=max_script_size
MAX_STATE_BYTES: Final = 512 * 1024 * 1024
MAX_ARGUMENTS: Final = 4096
MAX_WORD_BYTES: Final = 1024 * 1024
MAX_WORDS_READ: Final = 200_000  # in one search: arguments may be made so that they look like their own beginning
MAX_BETWEEN: Final = 16 * 1024  # from a submission's line to its words: a folder's path and some figures
MAX_BLANKS: Final = 8  # in the program's own path; each is a search through all of slurmctld's state
SUBMIT_DIR: Final = "SLURM_SUBMIT_DIR"  # where sbatch was called, which scripts use; kept for the next call
UMASK: Final = "SLURM_UMASK"
LIMITS: Final = "SLURM_RLIMIT_"
USER_ENV: Final = "SLURM_GET_USER_ENV"  # sbatch sets it where slurmd loads the user's login environment
# Names that are secrets more often than not. A value that is left out must be there again by other means: the job's own
# environment file while slurmctld keeps the job, else its script or the cluster's own secret store.
# Set by users for the srun within their job, and by nothing that sbatch does. Source: srun(1), INPUT ENVIRONMENT
# VARIABLES, without those that sbatch(1) sets.
OF_SRUN: Final = frozenset(
    f"SLURM_{name}"
    for name in (
        "BCAST",
        "COMPRESS",
        "CPU_BIND",
        "CPU_FREQ_REQ",
        "DEBUG",
        "DISABLE_STATUS",
        "EXACT",
        "KILL_BAD_EXIT",
        "LABELIO",
        "MEM_BIND",
        "MPI_TYPE",
        "NETWORK",
        "OVERLAP",
        "SRUN_REDUCE_TASK_EXIT_MSG",
        "STDERRMODE",
        "STDINMODE",
        "STDOUTMODE",
        "TASK_EPILOG",
        "TASK_PROLOG",
        "UNBUFFEREDIO",
        "WAIT",
    )
)
ALL: Final = ("",)  # a prefix of every name
OF_A_RUN: Final = ("REKINDLE_", "SLURM_JOB_ID", "SLURM_JOB_DEPENDENCY")  # by which another start of a run is known
# sbatch would wait for the job's end, or ask another cluster.
OF_THE_CALL: Final = frozenset({"SBATCH_WAIT", "SBATCH_CLUSTERS", "SBATCH_ARRAY_INX", "SBATCH_EXPORT"})
_SECRET: Final = re.compile(
    r"SECRET|PASSW|PASSPHRASE|CREDENTIAL|PRIVATE_?KEY|(?:^|_)TOKEN|TOKEN$|API_?KEY|ACCESS_?KEY|AUTH(?:_|$)|_PAT$|COOKIE",
    re.IGNORECASE,
)
_NO_SECRET: Final = re.compile(r"TOKENIZERS|XAUTHORITY|SSH_AUTH_SOCK|_FILE$|_DIR$|_PATH$|TOKENS$", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|BASH_FUNC_[^=\0]{1,200}(?:%%|\(\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A job's environment: what is kept, and the names of what looked like a secret. `kept` None: it cannot be read."""

    kept: Mapping[str, str] | None
    left_out: tuple[str, ...] = ()
    all: Mapping[str, str] | None = None


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value should not leave the machine."""
    return _SECRET.search(name) is not None and _NO_SECRET.search(name) is None


def parse_environment(raw: bytes, wanted: Callable[[str], bool] = lambda _: True) -> dict[str, str]:
    """Total: whatever a pair is not is passed over. Of variables that are not wanted nothing is kept."""
    found: dict[str, str] = {}
    body = raw[4:] if len(raw) >= 4 else b""
    for pair in body.split(b"\0"):
        name, equals, given = pair.decode("utf-8", "surrogateescape").partition("=")
        if equals and _NAME.fullmatch(name) and wanted(name):
            found.setdefault(name, given)
    return found


def environment_of(state_location: str, job: int) -> Captured:
    """The environment that a protected job was submitted with. Never raises."""
    raw = _kept_file(state_location, job, "environment", MAX_ENVIRONMENT_BYTES)
    if raw is None:
        return Captured(kept=None)
    whole = parse_environment(raw)
    kept = {name: given for name, given in whole.items() if not is_secret(name) and is_text(given)}
    left_out = tuple(sorted(name for name in whole if name not in kept))
    return Captured(kept=kept, left_out=left_out, all=whole)


def variables_of(
    state_location: str, job: int, names: Collection[str], prefixes: tuple[str, ...] = ()
) -> Mapping[str, str]:
    """Of any job those variables alone; of no job that is not protected is more taken. Never raises."""
    raw = _kept_file(state_location, job, "environment", MAX_ENVIRONMENT_BYTES) or b""
    return parse_environment(raw, lambda name: name in names or name.startswith(prefixes))


@dataclass(frozen=True, slots=True)
class StateFiles:
    """What slurmctld keeps of submissions below `location`, StateSaveLocation. No method raises."""

    location: str

    def is_readable(self) -> bool:
        return os.access(Path(self.location or "/nonexistent") / "job_state", os.R_OK)

    def script(self, job: int) -> str | None:
        return script_of(self.location, job)

    def variables(self, job: int, names: Collection[str], prefixes: tuple[str, ...] = ()) -> Mapping[str, str]:
        return variables_of(self.location, job, names, prefixes)

    def arguments(self, job: Job, line: str, version: str) -> tuple[str, ...] | None:
        """line: its `SubmitLine`."""
        return submission_of(self.location, job, {"SubmitLine": line}, version=version).arguments


def _kept_file(state_location: str, job: int, name: str, limit: int) -> bytes | None:
    """None where it cannot be read, or is longer. Source: slurm src/slurmctld/job_mgr.c, _write_data_to_file."""
    path = f"{state_location or '/nonexistent'}/hash.{job % 10}/job.{job}/{name}"
    try:
        with open(path, "rb") as file:
            return file.read() if os.fstat(file.fileno()).st_size <= limit else None
    except OSError:
        return None


def script_of(state_location: str, job: int) -> str | None:
    """The batch script as slurmctld keeps it, NUL-terminated; None where the file cannot be read. Never raises."""
    raw = _kept_file(state_location, job, "script", MAX_SCRIPT_BYTES)
    if raw is None:
        return None
    found = raw.rstrip(b"\0").decode("utf-8", "replace").replace("\0", "\ufffd")
    return found if found.startswith("#!") else None


def for_submission(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what sbatch sets again, and without what is about the call itself. What it reads of its own (`SBATCH_`)
    gives way to the options that a copy is submitted with.

    Limits stay: sbatch sets these variables from its own limits unless `--propagate=NONE` is given, as a copy has it,
    and slurmstepd reads them (slurm src/sbatch/sbatch.c, _set_rlimit_env; src/slurmd/slurmstepd/ulimits.c).
    """
    kept = {"SLURM_CONF", "SLURM_CONF_SERVER", SUBMIT_DIR, UMASK} | OF_SRUN
    return {
        name: given
        for name, given in environment.items()
        if name in kept
        or name.startswith(LIMITS)
        or (not name.startswith(("SLURM_", "_SLURM_SPANK_OPTION_")) and name not in OF_THE_CALL)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """How a job was submitted. `arguments` are its script's, None where there may be some and they cannot be
    distinguished; `line` is sbatch's whole command line, joined with blanks, None where it is not known."""

    arguments: tuple[str, ...] | None
    line: str | None = None


def submission_of(
    state_location: str, job: Job, detail: Mapping[str, str] | None = None, *, version: str = ""
) -> Submission:
    """detail: the job's fields of `scontrol show job`. version: Slurm's, as `scontrol show config` has it; one that
    cannot be read counts as a new one. Never raises."""
    shown = (detail or {}).get("SubmitLine", "")
    if job.command in ("", "(null)"):  # a script from standard input or `--wrap`, which takes none
        return Submission(arguments=(), line=shown or None)
    is_whole = _has_arguments_in_command(version)
    state = _state(Path(state_location or "/nonexistent"))
    if is_whole:
        words = find_arguments(state, job.command) if " " in job.command else ()
        script = job.command if words == () else job.command.partition(" ")[0]
    else:
        words, script = find_words(state, job.command, shown), job.command
    if words is None:
        return Submission(arguments=None, line=shown or None)
    return Submission(arguments=words, line=shown or find_line(state, (script, *words)))


def _state(folder: Path) -> bytes:
    """slurmctld's job state, empty where it cannot be read.

    slurmctld takes its name away before it gives it to the new state; between the two only `job_state.old` is there
    (slurm src/common/state_save.c, save_buf_to_state).
    """
    for name in ("job_state", "job_state.old"):
        try:
            path = folder / name
            return path.read_bytes() if path.stat().st_size <= MAX_STATE_BYTES else b""
        except FileNotFoundError:
            continue
        except OSError:
            break
    return b""


def _has_arguments_in_command(version: str) -> bool:
    """Source: Slurm's release notes, 23.02; seen on 22.05.8, 24.11.5 and 26.05.5."""
    match = re.match(r"(\d{2})\.(\d{2})", version)
    return match is not None and (int(match[1]), int(match[2])) < (23, 2)


def find_words(state: bytes, path: str, line: str) -> tuple[str, ...] | None:
    """The arguments of the script at `path` in slurmctld's state; None where there are none, or several that differ.

    line: the command line of the submission, joined with blanks, empty where it is unknown. The state holds other
    jobs of the same script; only a list that the line ends with can be this job's.
    """
    try:
        first = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    packed = struct.pack(">I", len(first) + 1) + first + b"\0"
    found: set[tuple[bytes, ...]] = set()
    left = MAX_WORDS_READ
    at = state.find(packed)
    while at != -1 and len(found) < 2:
        count = struct.unpack(">I", state[at - 4 : at])[0] if at >= 4 else 0
        if 0 < count <= MAX_ARGUMENTS:
            words, read = _words(state, at, count)
            left -= read
            if left < 0:
                return None
            if words is not None and (not line or _ends_with(line, words)):
                found.add(words)
        at = state.find(packed, at + 1)
    if len(found) != 1:
        return None
    return tuple(word.decode("utf-8", "replace") for word in found.pop()[1:])


def find_line(state: bytes, words: tuple[str, ...]) -> str | None:
    """The command line that was packed before just these words; None where there is none, or several that differ.

    Source: slurm src/slurmctld/job_mgr.c, _dump_job_details: submit_line, (up to 23.11) work_dir, then argv.
    """
    try:
        whole = [word.encode("utf-8", "surrogateescape") for word in words]
    except UnicodeEncodeError:
        return None
    packed = struct.pack(">I", len(whole)) + b"".join(struct.pack(">I", len(text) + 1) + text + b"\0" for text in whole)
    text = b" ".join([whole[0].rpartition(b"/")[2], *whole[1:]]) + b"\0"
    found: set[bytes] = set()
    at = state.find(packed)
    while at != -1 and len(found) < 2:
        end = state.rfind(text, max(0, at - MAX_BETWEEN - len(text)), at)
        if end != -1:
            line = _string_to(state, end + len(text) - 1)
            if line is not None:
                found.add(line)
        at = state.find(packed, at + 1)
    return found.pop().decode("utf-8", "replace") if len(found) == 1 else None


def _string_to(state: bytes, end: int) -> bytes | None:
    """The packed string whose last character stands before `end`."""
    begins = state.rfind(b"\0", max(0, end - MAX_WORD_BYTES), end) + 1  # the last zero of its length, or before it
    for start in range(begins, min(begins + 4, end)):
        if start >= 4 and struct.unpack(">I", state[start - 4 : start])[0] == end - start + 1:
            return state[start:end]
    return None


def _ends_with(line: str, words: tuple[bytes, ...]) -> bool:
    """Whether a line of sbatch ends with these words; it names the script as its user did, often without its folder."""
    script = words[0].rpartition(b"/")[2]
    text = b" ".join([script, *words[1:]]).decode("utf-8", "replace").strip()
    return line.strip().endswith((f" {text}", f"/{text}"))


def _words(state: bytes, at: int, count: int) -> tuple[tuple[bytes, ...] | None, int]:
    """`count` strings from there, None where there are fewer; and how many were read."""
    words: list[bytes] = []
    while len(words) < count:
        (length,) = struct.unpack(">I", state[at : at + 4]) if at + 4 <= len(state) else (0,)
        word = state[at + 4 : at + 4 + length]
        if not 0 < length <= MAX_WORD_BYTES or len(word) != length or word.find(b"\0") != length - 1:
            return None, len(words)
        words.append(word[:-1])
        at += 4 + length
    return tuple(words), len(words)


def find_arguments(state: bytes, command: str) -> tuple[str, ...] | None:
    """The list of strings in slurmctld's state whose words, joined, are `command`; None where none or several fit."""
    try:
        wanted = command.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return None
    found: set[tuple[bytes, ...]] = set()
    cut = wanted.find(b" ")
    at_most = min(wanted.count(b" ") + 1, MAX_ARGUMENTS)
    left = MAX_WORDS_READ
    for _ in range(MAX_BLANKS):  # the program's own path may hold blanks
        if cut == -1:
            break
        first = wanted[:cut]
        packed = struct.pack(">I", len(first) + 1) + first + b"\0"
        at = state.find(packed)
        while at != -1 and len(found) < 2:
            count = struct.unpack(">I", state[at - 4 : at])[0] if at >= 4 else 0
            if 0 < count <= at_most:
                words, read = _strings(state, at, wanted, count)
                left -= read
                if left < 0:
                    return None
                if words is not None:
                    found.add(words)
            at = state.find(packed, at + 1)
        cut = wanted.find(b" ", cut + 1)
    if len(found) != 1:
        return None
    return tuple(word.decode("utf-8", "replace") for word in found.pop()[1:])


def _strings(state: bytes, at: int, wanted: bytes, count: int) -> tuple[tuple[bytes, ...] | None, int]:
    """`count` strings from there that make up what is wanted, None where they do not; and how many were read."""
    words: list[bytes] = []
    done = 0
    while len(words) < count:
        (length,) = struct.unpack(">I", state[at : at + 4]) if at + 4 <= len(state) else (0,)
        if not 0 < length <= len(wanted) - done + 1:
            return None, len(words)
        word = state[at + 4 : at + 4 + length]
        if word[-1:] != b"\0" or not wanted.startswith(word[:-1], done):
            return None, len(words)
        words.append(word[:-1])
        done += length
        if wanted[done - 1 : done] not in (b" ", b""):
            return None, len(words)
        at += 4 + length
    return (tuple(words) if done == len(wanted) + 1 else None), len(words)
