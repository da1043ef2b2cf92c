"""`python -m dashboard.conversions RECIPE SOURCE TARGET [--options JSON]`: converts a source on a person's own machine.

This is the command that lineage names. It runs the recipe without confinement, which is for sources that the person trusts.
"""

import argparse
import json
import sys
from pathlib import Path

from dashboard.conversions.conversion import Conversion
from dashboard.conversions.recipes.table import RECIPES
from dashboard.shared.exceptions import DashboardError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dashboard.conversions", description=__doc__)
    parser.add_argument("recipe", choices=[one.name for one in RECIPES])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--environments", type=Path, default=Path("data/environments"))
    given = parser.parse_args()
    try:
        conversion = Conversion(given.recipe, given.source, given.target, given.options)
        lineage = conversion.run(
            given.environments, lambda percent, step: print(f"{percent:3.0f} % {step}", file=sys.stderr)
        )
    except DashboardError as error:
        sys.exit(error.message)
    print(json.dumps(lineage, indent=1))


if __name__ == "__main__":
    main()
