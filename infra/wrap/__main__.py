"""`python -m infra.wrap`."""

import sys

import infra.wrap
from infra.options import no_options

no_options("infra.wrap", infra.wrap.__doc__)
sys.exit(infra.wrap.main())
