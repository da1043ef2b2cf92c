"""The environment variables that a child process sees.

By default a model sees all variables of the server, like Triton's Python models. `manage.py up` sets
--model-environment=bounded, because the server then also has the dashboard's variables, such as its database and its keys.
"""

import re
from collections.abc import Mapping

# A bounded child sees only these variables of the server, because models must not see keys and passwords.
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

_show_all = False  # until `set_model_environment` is called, children see only the bounded choice
_hidden: re.Pattern[str] | None = None


def set_model_environment(policy: str, hidden: str = "") -> None:
    """Show "all" variables, or only a "bounded" choice of them, to every child that this process starts from now on.

    hidden: a regular expression for the names of variables that no child sees; "" for none."""
    global _show_all, _hidden
    _show_all = policy == "all"
    _hidden = re.compile(hidden) if hidden else None


def child_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the part of the server's environment that a model may see."""
    if _hidden is not None:
        variables = {name: value for name, value in variables.items() if not _hidden.fullmatch(name)}
    if _show_all:
        return dict(variables)
    return {
        name: value
        for name, value in variables.items()
        if name in _VARIABLES or (name.startswith(_PREFIXES) and not any(word in name for word in _SECRETS))
    }
