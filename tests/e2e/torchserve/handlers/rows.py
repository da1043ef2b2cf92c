"""A BaseHandler as most teams write it: JSON in, a list out. It raises where a request says."""

import json

import torch
from ts.torch_handler.base_handler import BaseHandler


class RowsHandler(BaseHandler):
    """`{"rows": [[1, 2, 3]]}` -> two numbers for each row; `{"fail": "inference"}` fails there."""

    def preprocess(self, data):
        bodies = [one.get("data") or one.get("body") for one in data]
        bodies = [json.loads(body) if isinstance(body, (bytes, bytearray, str)) else body for body in bodies]
        self.fail = next((body["fail"] for body in bodies if "fail" in body), "")
        self.may_fail("preprocess")
        return torch.tensor([body.get("rows", [[0, 0, 0]]) for body in bodies], dtype=torch.float32)

    def inference(self, data, *args, **kwargs):
        self.may_fail("inference")
        return super().inference(data, *args, **kwargs)

    def postprocess(self, data):
        self.may_fail("postprocess")
        return [[[round(number, 4) for number in row] for row in rows] for rows in data.tolist()]

    def explain_handle(self, data_preprocess, raw_data):
        targets = [raw.get("target") for raw in raw_data]
        return [
            {"sum": one.sum().item(), "target": target} for one, target in zip(data_preprocess, targets, strict=True)
        ]

    def describe_handle(self):
        with open("labels.txt") as file:
            labels = file.read().split()
        return {"labels": labels, "told": self.model_yaml_config["handler"]}

    def may_fail(self, phase):
        if self.fail == phase:
            raise KeyError(f"{phase} fails, as asked")
