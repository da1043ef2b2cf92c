"""Cuts texts into tokens with tokenizer.json, which says how they are truncated and padded. settings.json names the tensors."""

import json
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

ATTRIBUTES = {"input_ids": "ids", "attention_mask": "attention_mask", "token_type_ids": "type_ids"}


class TritonPythonModel:
    """One UTF-8 text for each row, or a pair of two inputs -> int64 [tokens] for each output; offsets [tokens, 2]."""

    def initialize(self, args):
        folder = Path(args["model_repository"], args["model_version"])
        self.settings = json.loads((folder / "settings.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        columns = [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.settings["inputs"]]
        try:
            texts = [[content.decode() for content in column.ravel()] for column in columns]
        except UnicodeDecodeError:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError("the text is not UTF-8", pb_utils.TritonError.INVALID_ARG)
            )
        found = self.tokenizer.encode_batch(list(zip(*texts, strict=True)) if len(texts) > 1 else texts[0])
        arrays = {name: [getattr(one, ATTRIBUTES[name]) for one in found] for name in self.settings["outputs"]}
        if self.settings["offsets"]:
            arrays["offsets"] = [one.offsets for one in found]
        tensors = [pb_utils.Tensor(name, np.array(rows, np.int64)) for name, rows in arrays.items()]
        return pb_utils.InferenceResponse(tensors)
