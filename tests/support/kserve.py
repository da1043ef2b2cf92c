"""The runtimes of deploy/kserve as KServe starts them, for a folder that stands for /mnt/models."""

import re
from pathlib import Path
from typing import Any

import yaml

from tests.support.serving_process import ROOT, ServerProcess

FOLDER = ROOT / "deploy" / "kserve"


def documents(file: str) -> dict[str, Any]:
    """Return the documents of a file, by their names."""
    return {one["metadata"]["name"]: one for one in yaml.safe_load_all((FOLDER / file).read_text())}


def container(runtime: str) -> dict[str, Any]:
    (only,) = documents("clusterservingruntimes.yaml")[runtime]["spec"]["containers"]
    return only


def filled(text: str, name: str, envelope: str = "kserve") -> str:
    """Return an argument as KServe fills it in for an InferenceService of that name."""
    return text.replace("{{.Name}}", name).replace("{{.Labels.serviceEnvelope}}", envelope)


class KServeProcess(ServerProcess):
    """A server with a runtime's arguments and variables. Only the ports, the addresses and the drain are others.

    folder: in place of /mnt/models. name: that of the InferenceService. flags: its own arguments, which follow the runtime's.
    """

    def __init__(
        self, runtime: str, folder: Path, name: str, *flags: str, envelope: str = "kserve", **options: Any
    ) -> None:
        here = container(runtime)
        arguments = [filled(one, name, envelope).replace("/mnt/models", str(folder)) for one in here["args"]]
        arguments = [re.sub(r"(-port)=\d+$", r"\1=0", one) for one in arguments]
        environment = {one["name"]: filled(one["value"], name, envelope) for one in here.get("env", ())}
        environment = {
            key: re.sub(r"^http://.*", "http://127.0.0.1:0", value).replace("0.0.0.0", "127.0.0.1")
            for key, value in environment.items()
        } | options.pop("environment", {})
        super().__init__([], *arguments, "--drain-secs=0", *flags, environment=environment, **options)

    def read_addresses(self) -> bool:
        found = super().read_addresses()
        self.http = self.http or self.addresses.get("torchserve_inference", "")
        return found
