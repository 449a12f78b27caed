"""`rekindle checkpoints PATH`: what lies in a folder or under an S3 prefix, and whether it is whole.

Reads listings and a few bytes of few files, with `--hashes` whole ones; nothing is unpickled. It speaks to the file
system or to S3 with the person's own credentials, never to the service. `--quarantine` and `--lift` write or delete one
mark in the mailbox, and no checkpoint.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rekindle.checkpoints.discover import order
from rekindle.checkpoints.found import Format, Found
from rekindle.checkpoints.marks import QuarantineMark, mark_key, quarantine_prefix
from rekindle.cli.terminal.confirm import ask
from rekindle.cli.terminal.output import out, out_json
from rekindle.cli.tools.checkpoint_files import LARGE_BYTES, files_at, judged, unknown
from rekindle.client.errors import BadFile, CommandFailed, NotFound, Unreachable, UsageError
from rekindle.client.table import Column, Style, clean, render
from rekindle.compat import UTC
from rekindle.monitor.base.aws import AwsUnavailable, Clients
from rekindle.monitor.mail.boxes import Box, open_box
from rekindle.protocol.hashing import verify_hashes
from rekindle.protocol.keys import hashes_key, manifest_prefix
from rekindle.protocol.manifests import Hashes, Manifest
from rekindle.protocol.wire import MailboxError, Place

_COLUMNS: Final = (
    Column("step", right=True),
    Column("format"),
    Column("size", right=True),
    Column("verdict"),
    Column("root"),
    Column("problems"),
)


def register(commands: Any) -> None:
    """Add the command; it needs no service, so it takes none of its options."""
    help_ = "checkpoints in a folder or under an S3 prefix, and whether they are whole"
    parser = commands.add_parser("checkpoints", help=help_, description=help_, allow_abbrev=False)
    parser.add_argument("path", metavar="PATH|s3://BUCKET/PREFIX")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.add_argument("--mailbox", metavar="URI", help="where its quarantine marks are (default: the same place)")
    hashes = (
        "also read files back: compare with the hashes of the seal, and archives with their own CRC-32 (a folder only)"
    )
    parser.add_argument("--hashes", action="store_true", help=hashes)
    act = parser.add_mutually_exclusive_group()
    act.add_argument("--newest", action="store_true", help="print only where the newest usable one lies, for a script")
    act.add_argument("--quarantine", metavar="ROOT", help="mark one: no run resumes from it until the mark is lifted")
    act.add_argument("--lift", metavar="ROOT", help="lift its mark: it may be resumed from again")
    parser.add_argument("--why", default="marked by hand", help="the reason, with --quarantine")
    parser.add_argument("--yes", action="store_true", help="do not ask, with --quarantine and --lift")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look, or write one mark. 0 also where checkpoints are damaged: telling that is what it is for.

    1 where gigabytes lie there that no rule knows: then it is not known whether there are others, nor which is newest.
    """
    try:
        place = _place(args.path, "PATH")
        box = open_box(_mailbox(args, place).uri, Clients())
        if args.quarantine is not None or args.lift is not None:
            return _mark(args, place, box)
        manifests, marks = _manifests(box), _marks(box)
        files = files_at(place)
        found = [_judged(item, place, marks) for item in judged(files, place, manifests)]
        strange = unknown(files, found)
        if args.hashes:
            found = _compared(found, place, manifests, box)
    except MailboxError as err:
        raise UsageError(str(err)) from err
    except FileNotFoundError as err:
        raise NotFound(f"{clean(args.path)}: no such folder") from err
    except OSError as err:
        raise BadFile(f"{clean(args.path)}: {err.strerror or err}") from err
    except AwsUnavailable as err:
        raise Unreachable(str(err)) from err
    except Exception as err:
        raise _explained(err, args.path) from err
    unclear = [*strange, *filter(_is_large_unknown, found)]
    if args.newest:
        return _newest(found, unclear, place)
    if args.json:
        out_json([_wire(item, place) for item in (*found, *strange)])
    else:
        _print_table([*found, *strange], place)
    return 1 if unclear else 0


def _is_large_unknown(item: Found) -> bool:
    """A folder that is called as a checkpoint is, with content of no known layout."""
    return item.format is Format.UNKNOWN and not item.is_complete and item.total_bytes >= LARGE_BYTES


def _place(text: str, name: str) -> Place:
    """`name` is what an error calls it. A `..` is followed, so that a root has one spelling."""
    if not text:
        raise UsageError(f"{name}: is empty")
    if not text.startswith(("s3://", "file://")):
        path = Path(text)
        text = str(path.resolve() if ".." in path.parts else path.absolute())
    return Place.parse(text, name)


def _mailbox(args: argparse.Namespace, place: Place) -> Place:
    """Where the marks are; those of a single file beside it."""
    if args.mailbox is not None:
        return _place(args.mailbox, "--mailbox")
    is_file = place.bucket is None and Path(place.path).is_file()
    return _place(str(Path(place.path).parent), "PATH") if is_file else place


# ---- what there is -------------------------------------------------------------------------------------------------


def _marks(box: Box) -> Mapping[str, QuarantineMark | None]:
    """Key of each mark -> the mark, None for one that cannot be read, which counts all the same."""
    found: dict[str, QuarantineMark | None] = {}
    for key in box.names(quarantine_prefix()):
        try:
            found[key] = QuarantineMark.from_json(box.get(key) or b"")
        except MailboxError:
            found[key] = None
    return found


def _judged(found: Found, place: Place, marks: Mapping[str, QuarantineMark | None]) -> Found:
    key = mark_key(_root(found, place)) if marks else ""
    if key not in marks:
        return found
    mark = marks[key]
    problem = "quarantined: its mark cannot be read" if mark is None else mark.problem
    return replace(found, problems=(*found.problems, problem))


def _compared(found: list[Found], place: Place, sealed: Sequence[Manifest], box: Box) -> list[Found]:
    """The same, each with the files as problems whose content is not what was sealed, or not what they say themselves.

    Tells what was compared.
    """
    if place.bucket is not None:
        raise UsageError("--hashes: reads files of a folder; those in S3 are not hashed")
    manifests = {Place.parse(manifest.root, "root").uri: manifest for manifest in sealed}  # the newest step stays
    after = []
    for item in found:
        root = _root(item, place)
        manifest = manifests.get(root)
        records = _broken_records(item, place)
        item = replace(item, problems=(*item.problems, *records))
        if manifest is None:
            print(f"{clean(root)}: no manifest, so no hashes", file=sys.stderr)
            after.append(item)
            continue
        check = verify_hashes(manifest, _hashes_of(manifest, box), root)
        print(f"{clean(root)}: {clean(check.text)}", file=sys.stderr)
        after.append(replace(item, problems=(*item.problems, *check.problems)))
    return after


def _broken_records(item: Found, place: Place) -> list[str]:
    """By the sums that archives keep of their own records."""
    folder = Path(place.path)
    folder = folder.parent if folder.is_file() else folder
    found = []
    for path in sorted(item.files):
        try:
            record = broken_record(folder / path) if zipfile.is_zipfile(folder / path) else None
        except (OSError, zipfile.BadZipFile):  # told by its format's rules
            continue
        if record is not None:
            found.append(f"{path}: its record {record} has other content than its CRC-32 says")
    return found


def _manifests(box: Box) -> list[Manifest]:
    """Oldest first. One that cannot be read says nothing."""
    found = []
    for key in box.names(manifest_prefix()):
        try:
            found.append(Manifest.from_json(box.get(key) or b""))
        except MailboxError:
            continue
    return found


def _hashes_of(manifest: Manifest, box: Box) -> Hashes | None:
    raw = box.get(hashes_key(manifest.step, manifest.attempt, manifest.life))
    try:
        return None if raw is None else Hashes.from_json(raw)
    except MailboxError:
        return None


def _root(found: Found, place: Place) -> str:
    if place.bucket is None and Path(place.path).is_file():
        return place.path
    return place.join(found.root).uri if found.root else place.uri


# ---- telling -------------------------------------------------------------------------------------------------------


def _newest(found: list[Found], unclear: list[Found], place: Place) -> int:
    """The path is all that is on stdout, also where something unknown may be newer: that is named on stderr, and is no
    success. A script that begins anew where there is nothing (3) does not so where it is only not known what is there.
    """
    whole = [item for item in found if item.is_complete]
    usable = [item for item in whole if item.step is not None]
    if not (whole or unclear):
        raise NotFound("no whole checkpoint lies there")
    if usable:
        out(_root(max(usable, key=order), place))
    else:
        unclear = [*whole, *unclear]
    for item in unclear:
        why = "; ".join(item.problems) or "its step is not known"
        print(
            f"rekindle: not chosen: {clean(_root(item, place))} ({_size(item.total_bytes)}): {clean(why)}",
            file=sys.stderr,
        )
    return 1 if unclear else 0


def _print_table(found: list[Found], place: Place) -> None:
    if not found:
        out("no checkpoint lies there")
        return
    rows = [
        [
            "?" if item.step is None else item.step,
            item.format.value,
            _size(item.total_bytes),
            "whole" if item.is_complete else "not usable",
            item.root or place.uri,
            "; ".join(item.problems),
        ]
        for item in found
    ]
    out(render(_COLUMNS, rows, Style.of(sys.stdout)))


def _wire(found: Found, place: Place) -> dict[str, Any]:
    return {
        "root": _root(found, place),
        "format": found.format.value,
        "step": found.step,
        "bytes": found.total_bytes,
        "files": len(found.files),
        "verdict": "whole" if found.is_complete else "not usable",
        "problems": list(found.problems),
    }


def _size(count: int) -> str:
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


# ---- marks ---------------------------------------------------------------------------------------------------------


def _mark(args: argparse.Namespace, place: Place, box: Box) -> int:
    given = args.lift if args.quarantine is None else args.quarantine
    if not given:
        raise UsageError("ROOT: is empty")
    root = given if given.startswith(("s3://", "file://", "/")) else place.join(given.strip("/")).uri
    key = mark_key(root)
    if args.lift is not None and box.get(key) is None:
        raise NotFound(f"{clean(root)} is not quarantined")
    then = "no run resumes from it" if args.quarantine is not None else "runs may resume from it again"
    ask(args, f"{'Quarantine' if args.quarantine is not None else 'Lift the mark of'} {clean(root)}:\n  {then}")
    if args.quarantine is not None:
        who = f"{getpass.getuser()} by hand"
        mark = QuarantineMark(root=root, why=args.why, by=who, at=datetime.now(UTC))
        done = box.put_new(key, mark.to_json())
        out(f"{clean(mark.root)} is quarantined{'' if done else ' already'}")
        return 0
    _delete(args, place, key)
    out(f"{clean(root)} may be resumed from again")
    return 0


def _delete(args: argparse.Namespace, place: Place, key: str) -> None:
    target = _mailbox(args, place).join(key)
    if target.bucket is None:
        Path(target.path).unlink()
    else:
        Clients().get("s3").delete_object(Bucket=target.bucket, Key=target.path)


def _explained(err: Exception, path: str) -> Exception:
    """The command's error for a botocore error, with S3's error code; every other exception is returned unchanged."""
    if isinstance(err, NotFound | CommandFailed | UsageError):
        return err
    if type(err).__module__.split(".")[0] not in ("botocore", "boto3"):
        return err
    code = str(getattr(err, "response", {}).get("Error", {}).get("Code", ""))
    if code in ("NoSuchBucket", "404"):
        return NotFound(f"{clean(path)}: no such bucket")
    if code:
        return CommandFailed(f"{clean(path)}: S3 refuses: {code}")
    return Unreachable(f"{clean(path)}: {clean(err)}")


CHUNK_BYTES: Final = 4 * 1024 * 1024


def broken_record(path: str | os.PathLike[str]) -> str | None:
    """The first record whose content is not what its sum says; None where all are right, or the file has no sums.

    Raises: OSError; zipfile.BadZipFile for what is no archive; ValueError: no file can have such a path.
    """
    with zipfile.ZipFile(path) as archive:
        broken: str | None = None
        right = 0
        for record in archive.infolist():
            if record.file_size == 0:
                continue
            if _is_right(archive, record):
                right += 1
            elif broken is None:
                broken = record.filename
        return broken if right else None


def _is_right(archive: zipfile.ZipFile, record: zipfile.ZipInfo) -> bool:
    try:
        with archive.open(record) as content:
            while content.read(CHUNK_BYTES):
                pass
    except (zipfile.BadZipFile, zlib.error):
        return False
    return True
