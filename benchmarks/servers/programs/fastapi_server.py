"""The baseline that many teams start with: FastAPI around a model, one forward pass for each request."""

import numpy as np
from fastapi import FastAPI
from mlp import Mlp
from pydantic import BaseModel


class Features(BaseModel):
    features: list[float]


model = Mlp()
app = FastAPI()


@app.post("/predict")
async def predict(body: Features) -> dict[str, list[float]]:
    return {"output": model(np.array([body.features], np.float32))[0].tolist()}
