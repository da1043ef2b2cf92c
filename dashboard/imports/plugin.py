"""The parts that TorchServe adds to the dashboard."""

from dashboard.plugins.plugin import ModelSource, Plugin

PLUGIN = Plugin(
    archive_readers=("dashboard.imports.archives.READER",),
    server_additions=("dashboard.imports.bundled_server.TORCHSERVE",),
    client_protocols=("dashboard.imports.bundled_server.PREDICTIONS",),
    model_sources=(ModelSource("store_import", "Import a model store"),),
)
