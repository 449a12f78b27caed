"""`python -m infra.wrap`."""

import sys

from infra.wrap import main

sys.exit(main())
