"""The head node's AWS credentials for the agent, which may reach neither root's files nor the metadata service.

Printed by a process of root's that does nothing else: neither the agent nor its helper has both AWS's code and root.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

PATIENCE_S: Final = 30.0
_HERE: Final = str(Path(__file__).resolve().parents[3])
_MAIN: Final = (
    f"import sys; sys.path.insert(0, {_HERE!r}); "
    "from rekindle.slurm_agent.privileged.credentials import main; sys.exit(main())"
)
NAMES: Final = ("access_key", "secret_key", "token", "region")


def credentials(environ: Mapping[str, str]) -> dict[str, str]:
    """By `NAMES`; "" for what there is none of. Raises: OSError."""
    try:
        done = subprocess.run(
            (sys.executable, "-I", "-c", _MAIN),
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE_S,
            check=True,
        )
        found = json.loads(done.stdout)
        return {name: str(found[name] or "") for name in NAMES}
    except (subprocess.SubprocessError, ValueError, KeyError, TypeError) as err:
        raise OSError(f"AWS credentials cannot be read: {type(err).__name__}") from err


def main() -> int:
    """As the AWS command line finds them: environment, files, the instance's role."""
    import boto3

    session = boto3.session.Session()
    found = session.get_credentials()
    keys = found.get_frozen_credentials() if found is not None else None
    values = [getattr(keys, name, "") for name in NAMES[:3]]
    print(json.dumps(dict(zip(NAMES, (*values, session.region_name), strict=True))))
    return 0
