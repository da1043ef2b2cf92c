"""A custom runtime of MLServer, which batches adaptively before it calls `predict`."""

from mlp import Mlp
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse


class MlpRuntime(MLModel):
    async def load(self) -> bool:
        self._mlp = Mlp()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        rows = NumpyCodec.decode_input(payload.inputs[0])
        output = NumpyCodec.encode_output("output", self._mlp(rows))
        return InferenceResponse(model_name=self.name, outputs=[output])
