"""A model repository that is not there when the server starts, where --exit-on-error=false keeps the server up."""

import tritonclient.grpc

from tests.support.model_factory import onnx_scale
from tests.support.serving_process import ServerProcess, wait_until


def test_a_server_whose_repository_is_missing_answers_and_is_ready_once_it_is_there(tmp_path):
    later = tmp_path / "later"
    flags = ("--exit-on-error=false", "--strict-readiness=false", "--model-control-mode=explicit")
    with ServerProcess([tmp_path, later], *flags, wait="") as server:
        wait_until(server.read_addresses, what="the listeners")
        with tritonclient.grpc.InferenceServerClient(server.grpc) as client:
            wait_until(lambda: "failed to poll model repository" in server.log, what="the sentence about it")
            assert not client.is_server_live()
            assert not client.is_server_ready()
            assert server.get("/v2")[0] == 200
            onnx_scale(later)
            wait_until(client.is_server_ready, what="readiness")
            assert client.is_server_live()
            client.load_model("scale")
            assert client.is_model_ready("scale")
