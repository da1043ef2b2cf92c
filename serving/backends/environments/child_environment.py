"""The Python that a child process runs under, and the environment variables that it sees.

Of a server that is started by itself a model sees them all, as Triton's Python models do. `manage.py up` says
--model-environment=bounded: there they are the dashboard's too, with its database and its keys.
"""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serving.core.errors import unsupported

# A child sees these variables of the server and no other where it is bounded: keys and passwords are not for models.
_VARIABLES = (
    *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH"),
)
_PREFIXES = (
    *("LC_", "XDG_", "SSL_CERT_", "MALLOC_", "PYTHONHASHSEED", "VIRTUAL_ENV"),
    *("CUDA", "NVIDIA_", "NCCL_", "OMP_", "KMP_", "MKL_", "OPENBLAS_", "NUMEXPR_", "ORT_"),
    *("TORCH", "HF_", "TRANSFORMERS_", "TOKENIZERS_"),
)
_SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
# Conda packages keep here what a shell must source before they work.
_ACTIVATION = "etc/conda/activate.d"
_ACTIVATE = f'for script in "$CONDA_PREFIX"/{_ACTIVATION}/*.sh; do . "$script"; done; exec "$@"'


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, by default the server's own. `folder` is the environment that it belongs to, where that is another one."""

    python: str = sys.executable
    folder: Path | None = None

    def command(self, *arguments: str) -> list[str]:
        """To run it with these arguments; an environment of conda is activated first."""
        command = [self.python, *arguments]
        if self.folder is None or not any((self.folder / _ACTIVATION).glob("*.sh")):
            return command
        shell = shutil.which("bash")
        if shell is None:
            raise unsupported("the environment of EXECUTION_ENV_PATH has scripts to activate it, which need bash")
        return [shell, "-c", _ACTIVATE, "activate", *command]

    def variables(self, given: Mapping[str, str]) -> dict[str, str]:
        """The part of the server's environment that a model may see, with its own environment's programs first."""
        found = child_environment(given)
        if self.folder is not None:
            found["PATH"] = ":".join(filter(None, (str(self.folder / "bin"), found.get("PATH", ""))))
            found.pop("VIRTUAL_ENV", None)
            if (self.folder / "conda-meta").is_dir():
                found["CONDA_PREFIX"] = str(self.folder)
            elif (self.folder / "pyvenv.cfg").is_file():
                found["VIRTUAL_ENV"] = str(self.folder)
        return found


_show_all = False  # until the program says so: whatever else imports this shows no more than it must


def show(environment: str) -> None:
    """`all` or `bounded`, for every child that is started from now on."""
    global _show_all
    _show_all = environment == "all"


def child_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The part of the server's environment that a model may see."""
    if _show_all:
        return dict(variables)
    return {
        name: value
        for name, value in variables.items()
        if name in _VARIABLES or (name.startswith(_PREFIXES) and not any(word in name for word in _SECRETS))
    }
