"""A character Markov model, trained when it is loaded, that streams its text: decoupled, a piece of text each response.

The prompt "fail" is refused, the prompt "break" fails behind two responses.
"""

from pathlib import Path

from tests.support.model_factory import python_model

CORPUS = "the quick brown fox jumps over the lazy dog. the dog sleeps. the fox runs over the hill and the dog follows. "

SOURCE = f"""
    import collections
    import json
    import random
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    class TritonPythonModel:
        def initialize(self, args):
            self.following = collections.defaultdict(list)
            for a, b in zip({CORPUS!r}, {CORPUS!r}[1:]):
                self.following[a].append(b)

        def execute(self, requests):
            for request in requests:
                prompt = request.inputs()[0].as_numpy().reshape(-1)[0].decode()
                limit = pb_utils.get_input_tensor_by_name(request, "max_tokens")
                count = 20 if limit is None else int(limit.as_numpy().reshape(-1)[0])
                seed = json.loads(request.parameters()).get("seed", 0)
                sender = request.get_response_sender()
                threading.Thread(target=self.answer, args=(sender, prompt, count, seed)).start()

        def answer(self, sender, prompt, count, seed):
            if prompt == "fail":
                error = pb_utils.TritonError("cannot continue this", pb_utils.TritonError.INVALID_ARG)
                sender.send(pb_utils.InferenceResponse(error=error), FINAL)
                return
            choose = random.Random(seed)
            last = prompt[-1:]
            for number in range(count):
                if sender.is_cancelled():
                    break
                if prompt == "break" and number == 2:
                    sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("broke off")), FINAL)
                    return
                last = choose.choice(self.following.get(last) or list({CORPUS!r}))
                out = pb_utils.Tensor("text_output", np.array([last.encode()], object))
                sender.send(pb_utils.InferenceResponse([out]))
            sender.send(flags=FINAL)
"""
CONFIG = """
    name: "markov" backend: "python"
    input [
        { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
        { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
    ]
    output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
    model_transaction_policy { decoupled: true }
    parameters { key: "slipway.text_generation" value { string_value: "{\\"message\\": \\"<{role}> {content} \\"}" } }
"""


def markov(repository: Path) -> None:
    python_model(repository, "markov", SOURCE, CONFIG)
