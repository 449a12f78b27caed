"""A cluster of any size for `FakeSlurm`: 1,000 nodes and 500 jobs by default. For the agent's benchmark.

`python -m tests.agent_slurm.recordings FOLDER [NODES] [JOBS]` writes it; put FOLDER/bin in front of PATH.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.agent_slurm.fake_slurm import FakeSlurm, node_line


def cluster(folder: Path, *, nodes: int = 1000, jobs: int = 500, protected: int = 100, jobs_on: int = 2) -> FakeSlurm:
    """Every job runs on `jobs_on` nodes of its own; the first `protected` say so in their comments."""
    fake = FakeSlurm(folder)
    names = [f"ip-10-{index // 65536}-{index // 256 % 256}-{index % 256}" for index in range(nodes)]
    taken = min(jobs * jobs_on, nodes)
    fake.nodes(
        [
            node_line(name, "ALLOCATED" if index < taken else "IDLE", more=f" InstanceId=i-{index:017x}")
            for index, name in enumerate(names)
        ]
    )
    fake.jobs(
        [
            {
                "JobID": str(1000 + index),
                "Name": f"train {index}",
                "NodeList": ",".join(names[(index * jobs_on + one) % nodes] for one in range(jobs_on)),
                "State": "RUNNING" if (index + 1) * jobs_on <= nodes else "PENDING",
                "Comment": "rekindle:default,signal=USR1" if index < protected else "(null)",
                "STDOUT": "/dev/null",
                "STDERR": "/dev/null",
            }
            for index in range(jobs)
        ]
    )
    fake.steps({str(1000 + index): 1 for index in range(jobs)})
    return fake


def main(args: list[str]) -> int:
    folder = Path(args[0])
    nodes, jobs = [int(one) for one in [*args[1:3], "1000", "500"][:2]] if len(args) != 2 else (int(args[1]), 500)
    print(cluster(folder, nodes=nodes, jobs=jobs).bin)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
