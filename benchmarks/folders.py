"""Where things lie."""

import os
from pathlib import Path

from tests.support.serving_process import ROOT

# What is made once and kept: models, the peers' environments, unfinished runs. It is no part of the project.
CACHE = Path(os.environ.get("BENCH_CACHE") or ROOT / ".cache" / "benchmarks")
REPOSITORY = CACHE / "models"
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "docs" / "benchmarks"
PICTURES = ROOT / "docs" / "images"
REQUIREMENTS = ROOT / "requirements" / "bench"
PROGRAMS = ROOT / "benchmarks" / "servers" / "programs"
