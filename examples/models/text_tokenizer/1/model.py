"""Cuts texts into the tokens that the text classifier was trained with."""

from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer


class TritonPythonModel:
    """`text`: one UTF-8 text for each row of the batch -> `input_ids` and `attention_mask` int64 [tokens].

    The rows of a request are padded to its longest row, rounded up to a multiple of 8, so that requests can share a batch.
    """

    def initialize(self, args):
        folder = Path(args["model_repository"], args["model_version"])
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.enable_padding(pad_to_multiple_of=8)

    def execute(self, requests):
        return [self._respond(request) for request in requests]

    def _respond(self, request):
        rows = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
        try:
            texts = [content.decode() for content in rows.ravel()]
        except UnicodeDecodeError:
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError("the text is not UTF-8", pb_utils.TritonError.INVALID_ARG)
            )
        encodings = self.tokenizer.encode_batch(texts)
        tensors = {
            "input_ids": [encoding.ids for encoding in encodings],
            "attention_mask": [encoding.attention_mask for encoding in encodings],
        }
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.array(values, dtype=np.int64)) for name, values in tensors.items()]
        )
