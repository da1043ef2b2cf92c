"""Host policies: instances run on the cores of the policy that their group names, or of the one for their device."""

import json
import os

import numpy as np
import pytest

from serving.cli.option_values import core_list
from serving.core.errors import ServingError
from serving.resources.host_policy import host_policies
from tests.serving.in_process import core, infer
from tests.support import model_factory

pytestmark = pytest.mark.asyncio
ALL = sorted(os.sched_getaffinity(0))
# Tells the cores that its process may use.
WITNESS = """
    import json
    import os
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            text = json.dumps(sorted(os.sched_getaffinity(0))).encode()
            out = pb_utils.Tensor("CORES", np.array([text], np.object_))
            return [pb_utils.InferenceResponse([out]) for _ in requests]
"""


async def cores_of(server, model):
    return json.loads((await infer(server, model, {"IN": np.zeros(1, np.int32)}))["CORES"][0])


async def test_instances_run_on_the_cores_of_their_policy(tmp_path):
    tensors = model_factory.tensors_text("input", [("IN", "INT32", [1])])
    tensors += model_factory.tensors_text("output", [("CORES", "BYTES", [1])])
    for name, policy in (("named", 'host_policy: "last"'), ("plain", "")):
        group = f"instance_group {{ count: 1 kind: KIND_CPU {policy} }}"
        model_factory.python_model(tmp_path, name, WITNESS, f'backend: "python" {tensors} {group}')
    first, last = str(ALL[0]), str(ALL[-1])
    async with core(tmp_path, load_model=("*",), host_policy=(("last", "cpu-cores", last),)) as server:
        assert await cores_of(server, "named") == [ALL[-1]]
        assert await cores_of(server, "plain") == ALL
    async with core(tmp_path, load_model=("*",), host_policy=(("cpu", "cpu-cores", first),)) as server:
        assert await cores_of(server, "named") == ALL
        assert await cores_of(server, "plain") == [ALL[0]]
    assert sorted(os.sched_getaffinity(0)) == ALL


async def test_cores_are_written_as_linux_writes_them_or_by_their_node():
    assert core_list("0-2,5, 7-8\n") == {0, 1, 2, 5, 7, 8}
    assert host_policies([("a", "cpu-cores", str(ALL[0]))]) == {"a": {ALL[0]}}


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [("cpu-cores", "100000", "has no core that this process may use"), ("numa-node", "4000", "no NUMA node 4000")],
)
async def test_cores_that_are_not_there_are_refused_at_start(tmp_path, setting, value, reason):
    with pytest.raises(ServingError, match=reason):
        async with core(tmp_path, host_policy=(("cpu", setting, value),)):
            pass
