"""docs/server.md names every route and every metric that the server has."""

from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.cli.option_values import RESTRICTABLE
from serving.core.model_identifier import ModelIdentifier
from serving.frontends import http_server, metrics_server
from serving.frontends.metrics import prometheus
from serving.frontends.metrics.hardware import Gpu, Hardware
from serving.frontends.metrics.summaries import Summaries
from serving.models.repository_index import VersionHealth
from serving.resources.response_cache import ResponseCache
from serving.telemetry.request_log import RequestLog
from serving.telemetry.statistics import ModelStatistics, PhaseHistograms
from tests.support.serving_process import ROOT

TEXT = (ROOT / "docs" / "server.md").read_text()


def test_every_route_is_documented_with_its_group() -> None:
    for route in http_server.ROUTES:
        assert f"| {route.method} | `{route.pattern}` | {route.group} |" in TEXT
        assert route.group in RESTRICTABLE
    for route in metrics_server.ROUTES:
        assert f"| {route.method} | `{route.pattern}` |" in TEXT


def test_every_metric_is_documented(tmp_path: Path) -> None:
    hardware = Hardware()
    model = ModelStatistics("m", 1, load_s=1.0, phases=PhaseHistograms(), first_responses=True)
    model.configure(ModelConfig(), caches=True)
    hardware.gpus = lambda: [Gpu("GPU-1", 0.5, 1, 2, 3.0, 4.0, 5.0)]  # type: ignore[method-assign]
    log = RequestLog(tmp_path / "requests.log")
    versions = [VersionHealth(ModelIdentifier("m"), "1", ready=True, failed=False)]
    health = prometheus.ServerHealth(True, 1.0, versions, {"models": ""}, 1, {"new": ["m"]}, {"s3://m": True})
    page = "".join(prometheus.render([model], hardware, ResponseCache(1), log, Summaries([0.5]), health=health))
    log.close()
    names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert len(names) > 40
    assert [name for name in names if f"`{name}`" not in TEXT] == []
