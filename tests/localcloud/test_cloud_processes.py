"""Training jobs as real processes: killed, frozen, stopped, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from localcloud.cloud import Cloud
from localcloud.platforms.processes import Processes
from tests.localcloud.conftest import training_job

pytestmark = [pytest.mark.process, pytest.mark.long]

IDLE = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + IDLE
POLITE = """
import signal, sys, time
def leave(*_):
    print('saved', flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print('up', flush=True)
time.sleep(600)
"""


def until(what: Callable[[], bool], limit_s: float = 120.0) -> bool:
    deadline = time.monotonic() + limit_s
    pause = threading.Event()
    while not what():
        if time.monotonic() > deadline:
            return False
        pause.wait(0.01)
    return True


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.fixture
def processes(http_cloud: Cloud, tmp_path: Path) -> Processes:
    return http_cloud.run_processes(
        tmp_path / "jobs",
        starting=timedelta(0),
        downloading=timedelta(0),
        grace=timedelta(milliseconds=300),
    )


def submit(cloud: Cloud, name: str, program: str, **changes: Any) -> None:
    script = Path(tempfile.mkdtemp()) / "train.py"  # an argument may not be longer than 256 characters
    script.write_text(program)
    algorithm = {
        "TrainingImage": "image",
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["python"],
        "ContainerArguments": [str(script)],
    }
    cloud.client("sagemaker").create_training_job(**training_job(name, AlgorithmSpecification=algorithm, **changes))


def status(cloud: Cloud, name: str) -> str:
    return str(cloud.client("sagemaker").describe_training_job(TrainingJobName=name)["TrainingJobStatus"])


def reason(cloud: Cloud, name: str) -> str:
    return str(cloud.client("sagemaker").describe_training_job(TrainingJobName=name)["FailureReason"])


def up(processes: Processes, name: str, workers: int = 2) -> dict[int, int]:
    assert processes.wait_running(name)
    assert until(lambda: all("up" in processes.log(name, rank).read_text() for rank in range(workers)))
    return processes.pids(name)


def test_workers_know_their_rank_their_job_and_the_cloud(http_cloud: Cloud, processes: Processes) -> None:
    program = textwrap.dedent("""
        import os, boto3
        name = os.environ["TRAINING_JOB_NAME"]
        job = boto3.Session().client("sagemaker").describe_training_job(TrainingJobName=name)
        print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["SM_CURRENT_HOST"], os.environ["SM_HOSTS"],
              job["TrainingJobStatus"], os.environ["GREETING"])
    """)
    submit(http_cloud, "who", program, Environment={"GREETING": "hello"})
    assert until(lambda: status(http_cloud, "who") == "Completed")
    assert processes.log("who", 0).read_text().strip() == '0 2 algo-1 ["algo-1", "algo-2"] InProgress hello'
    assert processes.log("who", 1).read_text().strip() == '1 2 algo-2 ["algo-1", "algo-2"] InProgress hello'


def test_one_killed_worker_fails_the_job_and_takes_the_others_down(http_cloud: Cloud, processes: Processes) -> None:
    submit(http_cloud, "killed", IDLE)
    pids = up(processes, "killed")
    processes.kill("killed", 1)
    assert until(lambda: status(http_cloud, "killed") == "Failed")
    assert reason(http_cloud, "killed") == "AlgorithmError: , exit code: 137"
    assert not any(is_alive(pid) for pid in pids.values())


def test_the_failure_file_becomes_the_failure_reason(http_cloud: Cloud, processes: Processes) -> None:
    program = "import os; open(os.environ['SM_OUTPUT_DIR'] + '/failure', 'w').write('NCCL timeout'); os._exit(3)"
    submit(http_cloud, "wrote", program)
    assert until(lambda: status(http_cloud, "wrote") == "Failed")
    assert reason(http_cloud, "wrote") == "AlgorithmError: NCCL timeout, exit code: 3"


def test_stopping_gives_sigterm_and_time_to_save(http_cloud: Cloud, processes: Processes) -> None:
    processes.grace = timedelta(minutes=2)
    submit(http_cloud, "polite", POLITE)
    up(processes, "polite")
    http_cloud.client("sagemaker").stop_training_job(TrainingJobName="polite")
    assert until(lambda: status(http_cloud, "polite") == "Stopped")
    assert "saved" in processes.log("polite", 0).read_text()


def test_who_ignores_sigterm_is_killed_after_the_grace(http_cloud: Cloud, processes: Processes) -> None:
    submit(http_cloud, "stubborn", STUBBORN)
    pids = up(processes, "stubborn")
    http_cloud.client("sagemaker").stop_training_job(TrainingJobName="stubborn")
    assert until(lambda: status(http_cloud, "stubborn") == "Stopped")
    described = http_cloud.client("sagemaker").describe_training_job(TrainingJobName="stubborn")
    assert [transition["Status"] for transition in described["SecondaryStatusTransitions"]][-2:] == [
        "Stopping",
        "Stopped",
    ]
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_frozen_worker_lives_stands_still_and_can_still_be_stopped(http_cloud: Cloud, processes: Processes) -> None:
    submit(http_cloud, "frozen", IDLE)
    pids = up(processes, "frozen")
    processes.freeze("frozen", 0)
    assert until(lambda: Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
    assert status(http_cloud, "frozen") == "InProgress"
    http_cloud.client("sagemaker").stop_training_job(TrainingJobName="frozen")
    assert until(lambda: status(http_cloud, "frozen") == "Stopped")


def test_a_thawed_worker_goes_on(http_cloud: Cloud, processes: Processes) -> None:
    program = "import time\nprint('up', flush=True)\ntime.sleep(0.2)\nprint('done', flush=True)\n"
    submit(http_cloud, "thawed", program)
    assert processes.wait_running("thawed")
    processes.freeze("thawed", 0)
    processes.thaw("thawed", 0)
    assert until(lambda: status(http_cloud, "thawed") == "Completed")
    assert "done" in processes.log("thawed", 0).read_text()


def test_what_a_worker_started_dies_with_it(http_cloud: Cloud, processes: Processes) -> None:
    program = textwrap.dedent("""
        import subprocess, sys, time
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("up", child.pid, flush=True)
        time.sleep(600)
    """)
    submit(http_cloud, "parent", program)
    up(processes, "parent")
    child = int(processes.log("parent", 0).read_text().split()[1])
    processes.kill("parent", 1)
    assert until(lambda: status(http_cloud, "parent") == "Failed")
    assert until(lambda: not is_alive(child))


# Starts two ranks as torchrun does: each in a session of its own, with torchrun's mark.
LAUNCHER = """
import os, subprocess, sys, time
first = 2 * int(os.environ["NODE_RANK"])
for rank in (first, first + 1):
    env = os.environ | {"RANK": str(rank), "TORCHELASTIC_RUN_ID": "none"}
    program = "import time; print('rank is up', flush=True); time.sleep(600)"
    subprocess.Popen([sys.executable, "-c", program], env=env, start_new_session=True)
%s
"""


def ranks_up(processes: Processes, name: str) -> dict[int, int]:
    assert processes.wait_running(name)
    logs = [processes.log(name, worker) for worker in range(2)]
    assert until(lambda: all(log.exists() and log.read_text().count("rank is up") == 2 for log in logs))
    return processes.ranks(name)


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are found in /proc")
def test_the_ranks_of_a_launcher_are_known_and_one_of_them_can_be_frozen_and_killed(
    http_cloud: Cloud, processes: Processes
) -> None:
    submit(http_cloud, "launched", LAUNCHER % "time.sleep(600)")
    ranks = ranks_up(processes, "launched")
    assert sorted(ranks) == [0, 1, 2, 3]
    assert set(ranks.values()).isdisjoint(processes.pids("launched").values())
    processes.freeze_rank("launched", 2)
    assert until(lambda: Path(f"/proc/{ranks[2]}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
    processes.kill_rank("launched", 1)
    assert until(lambda: not is_alive(ranks[1]))
    assert is_alive(ranks[0])
    http_cloud.client("sagemaker").stop_training_job(TrainingJobName="launched")
    assert until(lambda: status(http_cloud, "launched") == "Stopped")
    assert until(lambda: not any(is_alive(pid) for pid in ranks.values()))


@pytest.mark.skipif(sys.platform != "linux", reason="ranks are found in /proc")
def test_ranks_whose_launcher_died_before_them_end_with_the_job(http_cloud: Cloud, processes: Processes) -> None:
    submit(http_cloud, "orphans", LAUNCHER % "time.sleep(600)")
    ranks = ranks_up(processes, "orphans")
    os.kill(processes.pids("orphans")[0], signal.SIGKILL)  # the launcher alone
    assert until(lambda: status(http_cloud, "orphans") == "Failed")
    assert until(lambda: not any(is_alive(pid) for pid in ranks.values()))


def test_each_instance_finds_sagemakers_file_about_the_instances(http_cloud: Cloud, processes: Processes) -> None:
    program = textwrap.dedent("""
        import json, os
        with open(os.environ["SM_INPUT_CONFIG_DIR"] + "/resourceconfig.json") as file:
            config = json.load(file)
        print(config["current_host"], config["hosts"], config == json.loads(os.environ["SM_RESOURCE_CONFIG"]))
    """)
    submit(http_cloud, "config", program)
    assert until(lambda: status(http_cloud, "config") == "Completed")
    assert processes.log("config", 1).read_text().strip() == "algo-2 ['algo-1', 'algo-2'] True"


def test_a_command_that_does_not_exist_fails_the_job(http_cloud: Cloud, processes: Processes) -> None:
    algorithm = {"TrainingImage": "i", "TrainingInputMode": "File", "ContainerEntrypoint": ["no-such-program"]}
    http_cloud.client("sagemaker").create_training_job(**training_job("absent", AlgorithmSpecification=algorithm))
    assert until(lambda: status(http_cloud, "absent") == "Failed")
    assert "did not start" in reason(http_cloud, "absent")


def test_the_longest_allowed_runtime_ends_the_job(http_cloud: Cloud, processes: Processes) -> None:
    submit(http_cloud, "long", IDLE, StoppingCondition={"MaxRuntimeInSeconds": 1})
    assert until(lambda: status(http_cloud, "long") == "Stopped")
    described = http_cloud.client("sagemaker").describe_training_job(TrainingJobName="long")
    assert described["SecondaryStatus"] == "MaxRuntimeExceeded"


def test_closing_the_cloud_leaves_nobody_behind(tmp_path: Path) -> None:
    from localcloud.aws.clock import RealClock

    with Cloud(http=True, clock=RealClock()) as cloud:
        jobs = cloud.run_processes(tmp_path, starting=timedelta(0), downloading=timedelta(0))
        submit(cloud, "left", STUBBORN)
        pids = up(jobs, "left")
    assert not any(is_alive(pid) for pid in pids.values())


def test_a_killed_cloud_leaves_nobody_behind(tmp_path: Path) -> None:
    program = textwrap.dedent(f"""
        import sys
        from datetime import timedelta
        from pathlib import Path
        from localcloud.aws.clock import RealClock
        from localcloud.cloud import Cloud
        from tests.localcloud.test_cloud_processes import STUBBORN, submit, up
        with Cloud(http=True, clock=RealClock()) as cloud:
            jobs = cloud.run_processes(Path({str(tmp_path)!r}), starting=timedelta(0), downloading=timedelta(0))
            submit(cloud, "orphan", STUBBORN)
            print(*up(jobs, "orphan").values(), flush=True)
            sys.stdin.read()
    """)
    child = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    pids = [int(word) for word in child.stdout.readline().split()]
    assert len(pids) == 2
    assert all(is_alive(pid) for pid in pids)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert until(lambda: not any(is_alive(pid) for pid in pids))
