"""The baseline: a plain FastAPI server around PyTorch, one forward pass for each request, as many teams start with.

python -m uvicorn benchmarks.fastapi_baseline:app
"""

import itertools

import torch
from fastapi import FastAPI
from pydantic import BaseModel

SIZES = (512, 1024, 1024, 10)


class Features(BaseModel):
    features: list[float]


def build_model() -> torch.nn.Module:
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for rows, columns in itertools.pairwise(SIZES):
        layers += [torch.nn.Linear(rows, columns), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1]).eval()


torch.set_num_threads(1)
model = build_model()
app = FastAPI()


@app.post("/predict")
async def predict(body: Features) -> dict[str, list[float]]:
    with torch.inference_mode():
        return {"output": model(torch.tensor([body.features]))[0].tolist()}
