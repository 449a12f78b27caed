"""Hypothesis profiles: `ci`, unless HYPOTHESIS_PROFILE names `deep`, which tries ten times as much (tests/sizes.py)."""

from __future__ import annotations

import os

from hypothesis import settings

from tests.sizes import DEEP, examples

settings.register_profile("ci", deadline=None)
settings.register_profile(DEEP, deadline=None, max_examples=examples(100), print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
