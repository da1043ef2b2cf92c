# torchserve_client.py

import requests
import base64

def predict_torchserve(
    image_path: str,
    torchserve_url: str = "http://localhost:8080",
    model_name: str = "resnet50",
) -> dict:
    """Send a prediction request to TorchServe."""
    with open(image_path, "rb") as f:
        image_bytes = f.read()

    response = requests.post(
        f"{torchserve_url}/predictions/{model_name}",
        data=image_bytes,
        headers={"Content-Type": "application/octet-stream"},
    )
    response.raise_for_status()
    return response.json()

def list_models(torchserve_url: str = "http://localhost:8081") -> dict:
    """List all registered models via management API."""
    response = requests.get(f"{torchserve_url}/models")
    return response.json()

def register_model(
    torchserve_url: str,
    model_url: str,
    model_name: str,
    initial_workers: int = 1,
):
    """Register a new model at runtime - no restart needed."""
    response = requests.post(
        f"{torchserve_url}/models",
        params={
            "url": model_url,
            "model_name": model_name,
            "initial_workers": initial_workers,
            "synchronous": "true",
        },
    )
    response.raise_for_status()
    print(f"Registered {model_name}")
