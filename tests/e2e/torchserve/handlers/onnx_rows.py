"""An ONNX file with BaseHandler, which opens the session and leaves the call to the subclass."""

import numpy as np
import torch
from ts.torch_handler.base_handler import BaseHandler


class OnnxRowsHandler(BaseHandler):
    def preprocess(self, data):
        return np.array([one["body"]["rows"] for one in data], np.float32).reshape(-1, 3)

    def inference(self, data, *args, **kwargs):
        return torch.from_numpy(self.model.run(None, {"rows": data})[0])

    def postprocess(self, data):
        return [[round(number, 4) for number in row] for row in data.tolist()]
