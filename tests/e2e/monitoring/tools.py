"""Prometheus' programs, the files of deploy/ for them, and a Prometheus that runs on a free port.

Debian's package starts a Prometheus of its own as a service; no test uses that one.
"""

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.ports import free_port
from tests.support.serving_process import PATIENCE_S, ROOT, wait_until

DEPLOYED = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
RULES = sorted((DEPLOYED / "rules").glob("*.yml"))

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="Prometheus is not installed: apt install prometheus",
)
needs_alertmanager = pytest.mark.skipif(
    shutil.which("amtool") is None, reason="Alertmanager is not installed: apt install prometheus-alertmanager"
)


def checked(*command: str | Path) -> str:
    """Return what a command prints. Fail with it if the command fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S * 4)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rules(kind: str) -> list[dict[str, Any]]:
    """Return the rules of deploy/prometheus that have this key: `alert` or `record`."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"] if kind in rule]


class PrometheusProcess:
    """A Prometheus with a configuration of deploy/prometheus whose targets are replaced, and which looks every two
    seconds."""

    def __init__(self, folder: Path, target: str, dashboard: str, token: str) -> None:
        """target, dashboard: host:port of a server and of a web process of the dashboard. token: one that may read."""
        self._folder = folder
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        (folder / "rules").mkdir(parents=True)
        for path in RULES:
            content = yaml.safe_load(path.read_text())
            for group in content["groups"]:
                group.pop("interval", None)
            (folder / "rules" / path.name).write_text(yaml.safe_dump(content))
        # The jobs of the dashboard are comments, because they need a token.
        content = yaml.safe_load(
            re.sub(r"^  # ([- ] )", r"  \1", (DEPLOYED / "prometheus.yml").read_text(), flags=re.MULTILINE)
        )
        (folder / "token").write_text(token)
        for job in content["scrape_configs"][1:]:
            job["authorization"]["credentials_file"] = str(folder / "token")
            job["static_configs"] = [{"targets": [dashboard]}]
        content["global"] = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"}
        content["scrape_configs"][0]["static_configs"] = [{"targets": [target]}]
        del content["alerting"]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(content))
        self._command = [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]

    def __enter__(self) -> "PrometheusProcess":
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=subprocess.STDOUT, cwd=self._folder)
        try:
            wait_until(self._is_ready, what="Prometheus' start")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        finally:
            self._process.kill()
            self._process.wait()

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            with urllib.request.urlopen(f"{self._url}/-/ready", timeout=PATIENCE_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def get(self, path: str, **query: str) -> Any:
        """Return the data of an answer of the HTTP API. Raise HTTPError for a query that is wrong."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            found = json.load(answer)
        assert (found["status"], found.get("warnings")) == ("success", None), found
        return found["data"]

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Return the series of a query: their labels (`metric`) and values."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found
