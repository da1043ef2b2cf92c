"""TorchServe's flags on the server's command line, and the options that they and config.properties give."""

import argparse
import os
from pathlib import Path
from typing import Any

from serving.cli.option_values import boolean
from serving.cli.options import SourceOptions
from serving.cli.plugin_flags import Add, PluginFlags

_LOGGING = {
    "log_config": "its log is configured by --log-verbose, --log-format and --log-file",
    "cpp_log_config": "there is no C++ backend",
    "plugins_path": "it loads no Java plugins",
}
_FLAGS = (
    "torchserve",
    "ts_config",
    "models",
    "workflow_store",
    "disable_token_auth",
    "enable_model_api",
    "no_config_snapshots",
    "torchserve_logs",
    *_LOGGING,
)
_REFUSAL = "the models of this server are registered through TorchServe's management API"


class TorchServeFlags(PluginFlags):
    """The flags of TorchServe. Each of these flags makes the server open TorchServe's listeners."""

    @staticmethod
    def add(add: Add) -> None:
        add(
            "--torchserve",
            boolean,
            "serve TorchServe's APIs on its ports; each of the flags below has that done, too",
            default=None,
        )
        add("--ts-config", Path, "TorchServe's config.properties: serve its APIs on its ports", default=None)
        add("--models", str, "[<name>=]<archive> ...: what is registered at start, in place of load_models", nargs="+")
        add("--workflow-store", Path, "folder of workflow archives; by default that of the models", default=None)
        add("--disable-token-auth", boolean, "TorchServe's APIs need no token", default=None)
        add("--dt", boolean, argparse.SUPPRESS, dest="disable_token_auth", default=None)
        add("--enable-model-api", boolean, "models may be registered and unregistered while it runs", default=None)
        add("--no-config-snapshots", boolean, "write no snapshots of what is registered", default=None)
        add("--ncs", boolean, "the same", dest="no_config_snapshots", default=None)
        add(
            "--torchserve-logs",
            boolean,
            "write access_log.log and model_log.log as TorchServe does; by default where models are registered",
            default=None,
        )
        add("--log-config", Path, argparse.SUPPRESS, default=None)
        add("--cpp-log-config", Path, argparse.SUPPRESS, default=None)
        add("--plugins-path", str, argparse.SUPPRESS, default=None)
        add("--ppath", str, argparse.SUPPRESS, dest="plugins_path", default=None)

    @staticmethod
    def take(parser: argparse.ArgumentParser, values: dict[str, Any]) -> tuple[SourceOptions | None, list[str]]:
        flags = {name: values.pop(name) for name in _FLAGS}
        if all(value in (None, False) for value in flags.values()):
            return None, []
        # Imported only now: no other server needs the readers of YAML, Java properties and archives that these modules import.
        from repository.torchserve.properties import InvalidProperties, Properties, load_models, torchserve_options
        from repository.torchserve.properties import read as read_properties

        stores, values["model_store"] = values["model_store"], []
        remote = next((store for store in stores if not isinstance(store, Path)), None)
        if remote is not None:
            parser.error("--model-store: TorchServe's store is a folder on this machine")
        path = Path(os.environ["TS_CONFIG_FILE"]) if "TS_CONFIG_FILE" in os.environ else flags["ts_config"]
        notes = [
            f"--{name.replace('_', '-')} has no meaning on this server: {why}"
            for name, why in _LOGGING.items()
            if flags[name]
        ]
        try:
            properties = read_properties(path, os.environ) if path else Properties()
            options, more = torchserve_options(
                properties,
                os.environ,
                managed=not values["model_repository"],
                model_store=stores[-1] if stores else None,
                workflow_store=flags["workflow_store"],
                load_models=None if flags["models"] is None else load_models(flags["models"]),
                enable_model_api=flags["enable_model_api"] or None,
                token_auth=False if flags["disable_token_auth"] else None,
                log_files=flags["torchserve_logs"],
                config_snapshots=False if flags["no_config_snapshots"] else None,
            )
        except InvalidProperties as error:
            parser.error(str(error))
        for flag, folder in (("--model-store", options.model_store), ("--workflow-store", options.workflow_store)):
            if options.managed and folder is not None and not folder.is_dir():
                parser.error(f"{flag}: '{folder}' is not a folder")
        if options.managed and options.model_store is None:
            parser.error("--model-store is required: the folder that has the archives of the models")
        if not options.managed and (options.load_models or options.model_snapshot):
            more.append(
                "--models and load_models have no effect with --model-repository, which selects the served models"
            )
        source = SourceOptions(
            source="serving.torchserve.registry.source:TorchServeSource",
            frontends="serving.torchserve.listeners:listeners",
            settings=options,
            refusal=_REFUSAL if options.managed else "",
            hidden_variables=options.blacklist_env_vars,
        )
        return source, [*notes, *more]
