"""The example is run as a script from its own folder, as a training container does; tests import it the same way."""

import os
import sys
from pathlib import Path

# Before NumPy is loaded: on a busy machine, BLAS threads waiting for each other turn a second into a minute.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "numpy_lm"
sys.path.insert(0, str(EXAMPLE))
