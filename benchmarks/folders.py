"""The folders of the benchmarks."""

import os
from pathlib import Path

from tests.support.serving_process import ROOT

# Files that are created once and kept: models, the peers' environments, unfinished runs. They are no part of the project.
CACHE = Path(os.environ.get("BENCH_CACHE") or ROOT / ".cache" / "benchmarks")
REPOSITORY = CACHE / "models"
DOCS = ROOT / "docs"
TRIES = CACHE / "tries"  # a full run writes its results to DOCS, any other run writes them to this folder
REQUIREMENTS = ROOT / "requirements" / "bench"
PROGRAMS = ROOT / "benchmarks" / "servers" / "programs"
