"""Exit codes, wrong usage, hostile texts, and which service is spoken to."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import boto3
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from moto import mock_aws

from rekindle.client.api import check_url, path, region_of, signer
from rekindle.client.errors import Unreachable
from rekindle.client.table import Column, Style, clean, cut, render, width
from tests.cli.conftest import Run
from tests.cli.service import FakeService

FORGED = "lm\x1b]0;owned\x07\x1b[2J\r\n\u202emj\u2066\x9b31m\u200b"


# --- exit codes ---


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 1), (401, 1), (403, 1), (404, 3), (409, 1), (422, 1), (429, 5), (500, 1), (502, 5), (503, 5), (504, 5)],
)
def test_each_status_of_the_service_has_its_exit_code(
    rekindle: Run, service: FakeService, status: int, code: int
) -> None:
    service.answers.append((status, {"Retry-After": "5"}, b'{"detail": "because", "title": "t"}'))
    ended = rekindle("status")
    assert ended.code == code
    assert "because" in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize("content", [b"<html>", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_an_answer_that_is_no_object_is_a_failure(rekindle: Run, service: FakeService, content: bytes) -> None:
    service.answers.append((200, {}, content))
    ended = rekindle("status")
    assert ended.code == 1
    assert "Rekindle API" in ended.err


def test_a_redirection_is_not_followed(rekindle: Run, service: FakeService) -> None:
    service.answers.append((302, {"Location": "http://169.254.169.254/"}, b""))
    assert rekindle("status").code == 1
    assert len(service.requests) == 1


def test_a_service_that_is_not_there_is_exit_code_4(run: Run) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ended = run("--api", f"http://127.0.0.1:{port}", "status")
    assert ended.code == 4
    assert ended.err.count("\n") == 1


def test_an_order_without_an_answer_says_how_to_repeat_it(rekindle: Run, service: FakeService) -> None:
    service.answers += [(200, {}, b"{}"), (200, {}, b"{}"), (503, {}, b"{}")]
    ended = rekindle("checkpoint", "lm", "--yes", "--key", "abc")
    assert ended.code == 5
    assert "--key abc" in ended.err


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("nothing",),
        ("show",),
        ("show", ""),
        ("jobs", "x" * 300),
        ("resubmit", "lm", "--from-step", "-1"),
        ("resubmit", "lm", "--from-step", "1.5"),
        ("resubmit", "lm", "--skip", "5"),
        ("resubmit", "lm", "--skip", "9:5"),
        ("resubmit", "lm", "--skip", "5:5"),
        ("resubmit", "lm", "--skip", "a:b"),
        ("checkpoint", "lm", "--key", "two\r\nlines"),
        ("incidents", "--limit", "0"),
        ("register", "lm", "--mailbox", "/tmp/x"),
        ("quarantine",),
        ("replay",),
    ],
)
def test_wrong_usage_is_exit_code_2(rekindle: Run, service: FakeService, argv: tuple[str, ...]) -> None:
    assert rekindle(*argv).code == 2
    assert service.requests == []


@pytest.mark.parametrize(
    "url", ["ftp://x", "nonsense", "http://", "http://example.com", "https://u:p@x/", "https://x/?a=1", "http://[::1"]
)
def test_a_url_that_cannot_be_trusted_is_wrong_usage(run: Run, url: str) -> None:
    ended = run("--api", url, "status")
    assert ended.code == 2
    assert ended.err.count("\n") == 1


def test_a_reader_that_has_seen_enough_is_no_error(service: FakeService) -> None:
    for number in range(50):
        service.protect(f"lm-{number}")
    command = [sys.executable, "-m", "rekindle.cli.main", "--api", service.url, "jobs"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("classify <&-", 2, "rekindle: standard input: is closed\n"),
        ("detect - <&-", 2, "rekindle: standard input: is closed\n"),
        ("classify </dev/null >&-", 0, ""),
        ("checkpoints . >&-", 0, ""),
    ],
)
def test_closed_streams_are_said_so_or_do_no_harm(command: str, code: int, said: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m rekindle.cli.main {command}"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(["/bin/sh", "-c", line], stderr=subprocess.PIPE, text=True, env=env)
    assert (ended.returncode, ended.stderr) == (code, said)


# --- hostile texts ---


def test_a_name_from_outside_cannot_forge_the_terminal(rekindle: Run, service: FakeService) -> None:
    job = {
        "job_id": FORGED,
        "current_attempt": FORGED,
        "policy": FORGED,
        "active": True,
        "attempts": [{"name": FORGED}],
    }
    incident = {
        "incident_id": FORGED,
        "phase": FORGED,
        "order": {"who": FORGED},
        "halt": {"ask": {"outcome": FORGED}},
        "timeline": [
            {
                "rule": FORGED,
                "text": FORGED,
                "phase": FORGED,
                "actions": [FORGED],
                "facts": {"failure_reason": FORGED, "attempt": {"name": FORGED}},
            }
        ],
        "signals": [{"kind": FORGED, "source": FORGED, "summary": FORGED}],
        "resubmission": {"tries": [{"name": FORGED, "number": FORGED}]},
    }
    whole = {"jobs": [job], "incidents": [incident], "events": [{"error": FORGED, "field": FORGED}], **job, **incident}
    for command in (
        ("jobs",),
        ("jobs", "x"),
        ("status",),
        ("incidents",),
        ("show", "x"),
        ("quarantine", "list"),
        ("register", "x", "--yes"),
        ("jobs", "--json"),
        ("show", "x", "--json"),
    ):
        service.answers[:] = [(200, {}, json.dumps(whole).encode())]
        ended = rekindle(*command)
        assert ended.code == 0, command
        _is_harmless(ended.out + ended.err)


def test_an_error_from_outside_cannot_forge_the_terminal(rekindle: Run, service: FakeService) -> None:
    for status in (400, 404, 503):
        service.answers.append((status, {}, json.dumps({"detail": FORGED}).encode()))
        ended = rekindle("cancel", FORGED, "--yes")
        _is_harmless(ended.err)
        assert ended.err.splitlines()[0] == f"rekindle: target: API {service.url}"
        assert ended.err.count("\n") == 2


def _is_harmless(text: str) -> None:
    assert all(char.isprintable() or char == "\n" for char in text), ascii(text)


@given(st.text())
def test_cleaned_text_is_printable_and_on_one_line(text: str) -> None:
    assert all(char.isprintable() for char in clean(text))


@given(st.lists(st.tuples(st.text(max_size=30), st.text(max_size=30)), max_size=5), st.integers(1, 80))
def test_rows_of_any_text_are_aligned_and_never_longer_than_the_terminal_allows(
    rows: list[tuple[str, str]], columns: int
) -> None:
    table = render([Column("a"), Column("b")], rows, Style(columns=columns))
    lines = table.split("\n")
    first = max([1, *(width(clean(row[0])) for row in rows)])
    last = max([1, *(width(clean(row[1])) for row in rows)])
    if first + 2 + min(last, 20) <= columns or not rows:
        assert len(lines) == len(rows) + 1
        assert all(width(line) <= max(columns, 4) for line in lines)
        return
    # Too narrow for a table: every row is a block, and nothing is cut.
    assert len(lines) == len(rows) + sum(row[1] not in ("", "-") for row in rows)
    assert all(clean(cell) in table for row in rows for cell in row if cell != "-")


@given(st.lists(st.text(st.characters(categories=("L", "N")), min_size=1, max_size=30), min_size=2, max_size=9))
@example(["0", "0" * 19 + "\u3005" * 4])
def test_blocks_hold_each_cell_with_its_title_within_the_terminal(cells: list[str]) -> None:
    columns = [Column(f"t{index}") for index in range(len(cells))]
    style = Style(columns=30)
    blocks = render(columns, [cells], style).split("\n")
    assert blocks[0] == cells[0] or len(blocks) == 2
    for line in blocks[1:]:
        assert width(line) <= 30 or line.count("  ") == 1  # one cell that is too long stands alone
    # Where a table fits all the same, its last column gives way.
    whole = cells[:-1] if blocks[0].startswith("T0") else cells
    assert all(clean(cell) in "\n".join(blocks) for cell in whole)


@given(st.text(), st.integers(1, 20))
def test_cutting_never_takes_more_columns_than_allowed(text: str, limit: int) -> None:
    assert width(cut(clean(text), limit)) <= limit


def test_wide_characters_keep_the_columns_aligned() -> None:
    lines = render([Column("name"), Column("x")], [("訓練", "1"), ("ab", "2")], Style()).split("\n")
    assert [width(line[: line.index(last)]) for line, last in zip(lines, ("X", "1", "2"), strict=True)] == [6, 6, 6]


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert Style.of(Terminal()).colour
    assert not Style.of(io.StringIO()).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Style.of(Terminal()).colour
    assert "\x1b" in render([Column("phase")], [("recovered",)], Style(colour=True)).split("\n")[1]


# --- which service ---


def test_a_request_to_the_account_is_signed_for_its_own_region(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    url = "https://abc123.execute-api.us-west-2.amazonaws.com/api"
    sign = signer(url)
    assert sign is not None
    headers = sign("POST", f"{url}/v1/jobs", {"Idempotency-Key": "k"}, b"{}")
    assert "AKIDEXAMPLE/" in headers["Authorization"]
    assert "/us-west-2/execute-api/aws4_request" in headers["Authorization"]
    assert "idempotency-key" in headers["Authorization"]
    assert "secret" not in str(headers)


def test_without_credentials_or_region_the_account_is_not_spoken_to(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "https://abc123.execute-api.us-west-2.amazonaws.com/api"
    with pytest.raises(Unreachable, match="credentials"):
        signer(url)
    for name in ("status", "pause"):
        ended = run("--api", url, name)
        assert (ended.code, "no AWS credentials" in ended.err) == (4, True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(Unreachable, match="region"):
        signer("https://rekindle.example.com")


def test_this_machine_is_spoken_to_unsigned_whatever_credentials_there_are(
    rekindle: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    assert rekindle("status").code == 0
    assert "authorization" not in service.requests[0].headers


def test_regions_are_read_from_api_gateways_own_hosts_only() -> None:
    assert region_of("https://a1.execute-api.us-west-2.amazonaws.com/api") == "us-west-2"
    assert region_of("https://a1.execute-api.cn-north-1.amazonaws.com.cn/api") == "cn-north-1"
    assert region_of("https://a1.execute-api.us-west-2.amazonaws.com.evil.example/api") is None


def test_a_name_cannot_leave_its_place_in_the_path() -> None:
    assert path("jobs", "../incidents/x?y#z", "checkpoint") == "/jobs/..%2Fincidents%2Fx%3Fy%23z/checkpoint"
    assert check_url("https://x.example/api/") == "https://x.example/api"


def test_the_environment_names_the_service(run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKINDLE_API", service.url + "/")
    assert run("status").code == 0


def test_the_option_stands_before_or_after_the_command(run: Run, service: FakeService) -> None:
    assert run("status", "--api", service.url).code == 0
    assert run("--api", service.url, "status").code == 0


def test_an_api_and_a_store_at_once_are_wrong_usage(run: Run, service: FakeService) -> None:
    assert run("--api", service.url, "--store", ".", "status").code == 2


def test_no_service_at_all_says_how_to_name_one(run: Run) -> None:
    ended = run("status")
    assert ended.code == 4
    for way in ("--api", "--stack", "--store"):
        assert way in ended.err


def test_a_store_that_is_not_there_is_exit_code_4(run: Run) -> None:
    ended = run("--store", "nowhere-either", "status")
    assert ended.code == 4
    assert "nowhere-either" in ended.err


def test_the_stacks_output_names_the_api(run: Run, service: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    template = {
        "Resources": {"Queue": {"Type": "AWS::SQS::Queue"}},
        "Outputs": {"ApiUrl": {"Value": service.url + "/"}},
    }
    with mock_aws():
        assert "no stack 'rekindle'" in run("status").err
        boto3.client("cloudformation").create_stack(StackName="rekindle", TemplateBody=json.dumps(template))
        assert run("status").code == 0
        assert run("--stack", "other", "status").code == 4


def test_the_package_brings_its_command_by_entry_point(run: Run) -> None:
    ended = run("--help")
    assert ended.code == 0
    for command in ("status", "jobs", "incidents", "show", "checkpoint", "resubmit", "nodes", "stack", "replay"):
        assert command in ended.out


def test_what_a_slurm_job_needs_to_be_registered_is_in_the_help(run: Run) -> None:
    ended = run("register", "--help")
    assert ended.code == 0
    assert "scontrol update jobid=JOB comment=rekindle" in " ".join(ended.out.split())


def test_a_package_that_is_not_installed_whole_says_so_when_its_command_is_called(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = EntryPoint(name="later", value="no_such_package:register", group="rekindle.commands")
    monkeypatch.setattr("rekindle.cli.main.entry_points", lambda group: [broken])
    assert run("--help").code == 0
    ended = run("later", "--json", "x")
    assert ended.code == 2
    assert "rekindle[local]" in ended.err


def test_the_command_never_imports_the_service() -> None:
    code = (
        "import sys; from rekindle.cli.main import build_parser; build_parser();"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('chalicelib', 'boto3', 'botocore', 'moto')];"
        "print(bad)"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert answer.stdout == "[]\n"


# --- what a first-time user types ---


@pytest.mark.parametrize("command", [("incidents", "--fault", "bogus"), ("drill", "bogus", "--job", "lm")])
def test_a_fault_that_does_not_exist_is_answered_with_those_that_do(run: Run, command: tuple[str, ...]) -> None:
    ended = run(*command)
    assert ended.code == 2
    assert "'loss_spike'" in ended.err
    assert "FaultClass" not in ended.err


@pytest.mark.parametrize("since", ["yesterday", "2026-13-01", "2026-11-20T10", "2026-11-20T10:00 ", "٢٠٢٦-11-20", ""])
def test_a_time_that_is_none_is_wrong_usage_told_in_words(rekindle: Run, service: FakeService, since: str) -> None:
    ended = rekindle("incidents", "--since", since)
    assert ended.code == 2
    assert "must be a time as in 2026-11-20" in ended.err
    assert service.requests == []


@pytest.mark.parametrize(
    "since", ["2026-11-20", "2026-11-20T10:00Z", "2026-11-20T10:00:01.5+01:00", "2026-11-20 10:00"]
)
def test_the_service_takes_every_time_that_the_command_line_takes(rekindle: Run, since: str) -> None:
    assert rekindle("incidents", "--since", since).code == 0


def test_the_version_is_told(run: Run) -> None:
    ended = run("--version")
    assert ended.code == 0
    assert re.fullmatch(r"rekindle \d+\.\d+\S*\n", ended.out)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_is_told_in_one_line(service: FakeService) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "rekindle.cli.main", "--api", service.url, "status"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.returncode == 1
    assert ended.stderr == "rekindle: output: No space left on device\n"


def test_a_folder_of_other_files_is_no_store_and_nothing_is_written_there(run: Run, tmp_path: Path) -> None:
    (tmp_path / "passwd").write_text("root")
    ended = run("--store", str(tmp_path), "status")
    assert ended.code == 4
    assert "is no store" in ended.err
    assert [file.name for file in tmp_path.iterdir()] == ["passwd"]
