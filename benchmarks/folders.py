"""Where things lie."""

import os
from pathlib import Path

from tests.support.serving_process import ROOT

# What is made once and kept: models, the peers' environments, unfinished runs. It is no part of the project.
CACHE = Path(os.environ.get("BENCH_CACHE") or ROOT / ".cache" / "benchmarks")
REPOSITORY = CACHE / "models"
DOCS = ROOT / "docs"
TRIES = CACHE / "tries"  # what is no full run writes here as a full one does to DOCS
REQUIREMENTS = ROOT / "requirements" / "bench"
PROGRAMS = ROOT / "benchmarks" / "servers" / "programs"
