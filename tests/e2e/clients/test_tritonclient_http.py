"""The stock HTTP client."""

import numpy as np
import pytest

from tests.e2e.clients.tritonclient_adapter import Tensor, TritonClient
from tests.e2e.clients.tritonclient_suite import ADD_SUB, JSON_TYPES, TritonclientSuite, sample


class TestTritonclientHttp(TritonclientSuite):
    kind = "http"

    @pytest.mark.parametrize("datatype", JSON_TYPES)
    @pytest.mark.parametrize(("binary", "json_outputs"), [(False, True), (False, False), (True, True)])
    def test_json_and_binary_data_may_be_mixed_either_way(
        self, client: TritonClient, datatype: str, binary: bool, json_outputs: bool
    ) -> None:
        array = sample(datatype)
        if datatype == "BYTES":
            array = np.array([["", "abc", "d"], ["schön", "x" * 300, "1"]], np.object_)
        inputs = {"INPUT0": Tensor(array, datatype, binary=binary)}
        answer = client.infer(f"identity_{datatype.lower()}", inputs, ["OUTPUT0"], json_outputs=json_outputs)
        found = answer.outputs["OUTPUT0"].tolist()
        if datatype == "BYTES":
            found = [[one.decode() if isinstance(one, bytes) else one for one in row] for row in found]
        assert found == array.tolist()

    def test_one_request_may_hold_json_and_binary_inputs(self, client: TritonClient) -> None:
        inputs = {"INPUT0": Tensor(ADD_SUB["INPUT0"], binary=False), "INPUT1": ADD_SUB["INPUT1"]}
        assert client.infer("add_sub", inputs).outputs["OUTPUT0"].tolist() == [[5, 5, 5, 5]]

    def test_a_large_tensor_passes_both_ways(self, client: TritonClient) -> None:
        array = np.random.default_rng(0).random((1, 8 << 20), np.float32)
        assert np.array_equal(client.infer("identity_fp32", {"INPUT0": array}).outputs["OUTPUT0"], array)
