"""Runs a complete `manage.py up` with many models, a person who is signed in, and a light load."""

import itertools
import re
import time
from contextlib import AbstractContextManager
from pathlib import Path

import httpx

from tests.support.clients import clients
from tests.support.model_factory import onnx_scale
from tests.support.model_pages import model_name
from tests.support.serving_process import wait_until
from tests.support.up_process import Up

LOAD_TIMEOUT_S = 900.0
BUSY_MODELS = 10  # the number of models that get requests
ASK_EVERY_S = 0.02
BODY = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}]}
ONE_INSTANCE = """
instance_group [ { count: 1 kind: KIND_CPU } ]
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""


class House:
    """`manage.py up` with `models` ready models, and the cookies of a person with all permissions."""

    def __init__(self, data: Path, models: int) -> None:
        self.data = data
        self.up = Up(data)
        self._models = models
        self.cookies: dict[str, str] = {}

    @property
    def url(self) -> str:
        return self.up.dashboard_url

    def __enter__(self) -> "House":
        for number in range(self._models):
            onnx_scale(self.data / "models", model_name(number), extra=ONE_INSTANCE)
        self.up.start()
        try:
            self._sign_in()
            self._take_over()
        except BaseException:
            self.up.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.up.close()

    def web_process(self) -> int:
        """Return the id of the process that serves the pages."""
        [pid] = self.up.running("-m", "daphne")
        return pid

    def _sign_in(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60.0) as client:
            found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', client.get("/sign-in").text)
            assert found is not None
            form = {"username": "admin", "password": self.up.password, "csrfmiddlewaretoken": found[1]}
            answer = client.post("/sign-in", data=form, headers={"Referer": f"{self.url}/sign-in"})
            assert answer.status_code == 302, answer.text
            self.cookies = dict(client.cookies)

    def _take_over(self) -> None:
        """Put every model under management, load them, and wait until all are ready."""
        headers = {"X-CSRFToken": self.cookies["slipway_csrf"], "Referer": f"{self.url}/", "Origin": self.url}
        with httpx.Client(base_url=f"{self.url}/api/v1", cookies=self.cookies, headers=headers, timeout=120.0) as api:
            for action in ("adopt", "load"):
                for number in range(self._models):
                    api.post(f"/models/{model_name(number)}/{action}").raise_for_status()
        wait_until(lambda: self._ready() == self._models, LOAD_TIMEOUT_S, f"{self._models} models ready")

    def _ready(self) -> int:
        time.sleep(0.5)
        ready = "select count(*) from dashboard_modelstate where state = 'READY' and model_name like 'model_%'"
        return int(self.up.query(ready)[0][0])

    def light_load(self) -> AbstractContextManager[None]:
        """Send requests to some of the models in turn, about 50 a second."""
        numbers = itertools.cycle(range(min(BUSY_MODELS, self._models)))

        def ask(http: httpx.Client) -> None:
            http.post(f"{self.up.http_url}/v2/models/{model_name(next(numbers))}/infer", json=BODY).raise_for_status()

        return clients(ask, pause=lambda: ASK_EVERY_S)
