"""`python -m dashboard.conversions.survey FOLDER`: prints as JSON which recipes take the files of a folder, and what its
pickles import. The process is confined, because nobody trusts the files."""

import json
import sys
from pathlib import Path

from dashboard.conversions.pickle_imports import imports_in
from dashboard.conversions.recipes.table import environment_of, loads_code, recipes_for, source_of
from repository.files import foreign_formats as formats


def main() -> None:
    source = source_of(Path(sys.argv[1]))
    offers = [
        {"recipe": one.name, "environment": environment_of(one, source), "loads_code": loads_code(one, source)}
        for one in recipes_for(source)
    ]
    kinds = (formats.PICKLE, formats.TORCH_WEIGHTS)
    pickles = [source.folder / name for name in source.names if source.kinds.get(name) in kinds]
    found = imports_in(pickles) if offers else {}
    json.dump({"offers": offers, "imports": found}, sys.stdout)


if __name__ == "__main__":
    main()
