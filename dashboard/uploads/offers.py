"""The recipes that take the files of an upload: found by the inspection, and shown with what they need here."""

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from django.conf import settings

from dashboard.access.authorisation import Actor, Right
from dashboard.confinement.program import has_gpu, run
from dashboard.confinement.promises import Promise, protections
from dashboard.conversions.conversion import LOCKS
from dashboard.conversions.recipes.table import BY_NAME, Recipe, Source, loads_code, recipes_for
from dashboard.environments.locks import read_lock
from dashboard.environments.making import is_ready
from dashboard.jobs.context import JobContext
from dashboard.models import Upload
from dashboard.models.upload_json import Conversion, PickleImports
from dashboard.models.upload_json import Offer as OfferRow
from dashboard.uploads.arrangement import source_folder
from dashboard.uploads.inspector import inspection_limits, link_packages, plain_environment

_MAX_SURVEY_BYTES = 4 << 20
NO_IMPORTS = PickleImports(names=[], dangerous=[], unread=[])


# -- found by the inspection -------------------------------------------------------------------------------------------
def find_offers_of_served(upload: Upload) -> Conversion:
    """Return the upload's conversion with the recipes that make another model of files that can be published as they are."""
    source = Source(source_folder(upload), tuple(file.path for file in upload.files.all()), {})
    offers = [
        OfferRow(recipe=one.name, environment=one.environment, loads_code=loads_code(one, source))
        for one in recipes_for(source)
        if one.of_served
    ]
    return {
        "lineage": upload.conversion.get("lineage", []),
        "parts": upload.conversion.get("parts", []),
        "offers": offers,
    }


def find_offers(upload: Upload, context: JobContext) -> Conversion:
    """Return the upload's conversion with the recipes for files that no backend serves, and what their pickles import."""
    folder = source_folder(upload)
    with tempfile.TemporaryDirectory(dir=upload.folder) as scratch, tempfile.TemporaryFile() as output:
        ended = run(
            [sys.executable, "-m", "dashboard.conversions.survey", str(folder)],
            folder=Path(scratch),
            directory=link_packages(Path(scratch), "dashboard", "repository"),
            reads=[folder, settings.BASE_DIR / "dashboard", settings.BASE_DIR / "repository"],
            limits=inspection_limits(),
            environment=plain_environment(Path(scratch)),
            check=context.check_cancelled,
            on_line=context.log,
            output=output,
            given_up=tuple(Promise),  # it reads, and loads nothing
        )
        output.seek(0)
        text = output.read(_MAX_SURVEY_BYTES)
    try:
        found = cast(Conversion, json.loads(text)) if ended.status == 0 else Conversion()
    except ValueError:
        found = Conversion()
    offers = [one for one in found.get("offers", []) if not BY_NAME[one["recipe"]].of_served]
    return {**find_offers_of_served(upload), "offers": offers, "imports": found.get("imports") or NO_IMPORTS}


# -- shown -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Offer:
    """A recipe that takes the files. loads_code: whether it may run code of the files. refusal: why this person may not start
    it here, "" if they may. ready: whether its environment is there. missing: packages that only the product can give it, and
    that the product lacks. remedy: the file whose installation gives them."""

    recipe: Recipe
    environment: str
    loads_code: bool
    refusal: str
    ready: bool
    missing: tuple[str, ...]
    remedy: str


def offers_of(upload: Upload, actor: Actor) -> list[Offer]:
    """Return the recipes that take the files of an upload, the best first."""
    return [_offer(row, actor) for row in upload.conversion.get("offers", []) if row["recipe"] in BY_NAME]


def unkept_promises() -> Mapping[Promise, str]:
    """Return the promises of confinement that this machine does not keep, each with a sentence."""
    return protections().missing


def person_lacks(recipe: Recipe, row: OfferRow, actor: Actor) -> str:
    """Return why a person may not start a recipe, as the rest of a sentence; "" if they may."""
    if actor.may(Right.UPLOAD_CODE) or not (row["loads_code"] or recipe.makes_code):
        return ""
    code = "runs code of the files" if row["loads_code"] else "makes files that can run code"
    return f"{code}, which needs the permission to {Right.UPLOAD_CODE.value}"


def machine_lacks(recipe: Recipe) -> str:
    """Return what a recipe needs and this machine lacks, as the rest of a sentence; "" if it lacks nothing."""
    return "needs a machine with an NVIDIA GPU, and this one shows none" if recipe.needs_gpu and not has_gpu() else ""


def _offer(row: OfferRow, actor: Actor) -> Offer:
    recipe, lock = BY_NAME[row["recipe"]], read_lock(LOCKS / f"{row['environment']}.txt")
    lack = person_lacks(recipe, row, actor) or machine_lacks(recipe)
    return Offer(
        recipe,
        row["environment"],
        row["loads_code"],
        f"It {lack}" if lack else "",
        is_ready(lock, Path(settings.ENVIRONMENTS_DIR)),
        lock.missing,
        lock.remedy,
    )
