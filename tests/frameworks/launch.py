"""What SageMaker's PyTorch container does for a script that wants several ranks per instance: torchrun on each one.

    python3 launch.py RANKS_PER_INSTANCE SCRIPT

Source: sagemaker-pytorch-training-toolkit, `torch_distributed`: torchrun --nnodes --node_rank --nproc_per_node with the
first host as master. On the embedded cloud all instances are this machine, so MASTER_ADDR stands for algo-1.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Become torchrun."""
    per_host, script = sys.argv[1:3]
    hosts = json.loads(os.environ["SM_HOSTS"])
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={len(hosts)}",
        f"--node-rank={hosts.index(os.environ['SM_CURRENT_HOST'])}",
        f"--nproc-per-node={per_host}",
        f"--master-addr={os.environ['MASTER_ADDR']}",
        f"--master-port={os.environ['MASTER_PORT']}",
        script,
    ]
    os.execv(sys.executable, command)  # noqa: S606  becoming torchrun is the point


if __name__ == "__main__":
    main()
