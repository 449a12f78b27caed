"""`python -m infra.deploy`: see infra/deploy/deployment.py."""

import sys

from infra.deploy.deployment import main

if __name__ == "__main__":
    sys.exit(main())
