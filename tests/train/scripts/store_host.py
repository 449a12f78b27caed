"""Hosts a story's TCPStore in a process of its own, as torchrun's agent does; its port goes into the file `port`."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=300))
home = Path(os.environ["TRAIN_HOME"])
(home / ".port").write_text(str(store.port))
(home / ".port").replace(home / "port")
threading.Event().wait()
