"""Print a software bill of materials of this Python and this Debian, in CycloneDX's JSON: `python sbom.py NAME > FILE`.

It runs inside an image while that is built, so it lists what is installed, not what was asked for. It imports only the standard
library. https://cyclonedx.org/docs/1.5/json/
"""

import json
import platform
import re
import sys
from collections.abc import Iterator
from email.parser import HeaderParser
from importlib.metadata import Distribution, distributions
from pathlib import Path

STATUS = Path("/var/lib/dpkg/status")
Component = dict[str, object]


def python_packages() -> Iterator[Component]:
    """Yield each distribution that is installed in the environment."""
    for found in distributions():
        name = re.sub(r"[-_.]+", "-", found.name).lower()
        yield _component(name, found.version, f"pkg:pypi/{name}@{found.version}", _licence(found))


def debian_packages(status: Path = STATUS) -> Iterator[Component]:
    """Yield each package that dpkg has installed; none where there is no dpkg."""
    for paragraph in status.read_text().split("\n\n") if status.exists() else ():
        fields = HeaderParser().parsestr(paragraph)
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            purl = (
                f"pkg:deb/debian/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={fields['Architecture']}"
            )
            yield _component(name, version, purl)


def bill(name: str, components: list[Component]) -> Component:
    """Return the document. It has no time and no random number, so that equal contents make equal images."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": name, "name": name}},
        "components": sorted(components, key=lambda one: str(one["bom-ref"])),
    }


def _component(name: str, version: str, purl: str, licence: str = "") -> Component:
    told: Component = {"licenses": [{"license": {"name": licence}}]} if licence else {}
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, **told}


def _licence(found: Distribution) -> str:
    """Return what a distribution says of its licence in one line, or ""."""
    fields = found.metadata
    told = fields.get("License-Expression") or fields.get("License") or ""
    classifiers = [one.rpartition(" :: ")[2] for one in fields.get_all("Classifier") or [] if one.startswith("License")]
    # Some have the whole text of a licence in that field.
    return told if told and "\n" not in told else ", ".join(classifiers)


if __name__ == "__main__":
    python: Component = _component(
        "python", platform.python_version(), f"pkg:generic/python@{platform.python_version()}"
    )
    json.dump(bill(sys.argv[1], [python, *python_packages(), *debian_packages()]), sys.stdout, indent=1)
