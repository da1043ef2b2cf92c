# handler.py - Custom handler for pre/post-processing

import torch
import numpy as np
from torchvision import transforms
from PIL import Image
import io
import base64
from ts.torch_handler.base_handler import BaseHandler

class ResNet50Handler(BaseHandler):
    """
    Custom TorchServe handler.

    BaseHandler provides: model loading, device management, batching.
    You implement: preprocess, inference (optional override), postprocess.
    """

    def initialize(self, context):
        """Called once at server startup - load model and preprocessing."""
        super().initialize(context)  # Loads the TorchScript model

        self.transform = transforms.Compose([
            transforms.Resize(256),
            transforms.CenterCrop(224),
            transforms.ToTensor(),
            transforms.Normalize(
                mean=[0.485, 0.456, 0.406],
                std=[0.229, 0.224, 0.225],
            ),
        ])

        # Load class labels
        with open("imagenet_classes.txt") as f:
            self.labels = [line.strip() for line in f.readlines()]

    def preprocess(self, data: list) -> torch.Tensor:
        """Convert raw HTTP request body to model input tensor.

        data: list of dicts, one per request in the batch.
        """
        tensors = []

        for item in data:
            # Accept both raw bytes and base64-encoded images
            image_bytes = item.get("body") or item.get("data")

            if isinstance(image_bytes, str):
                image_bytes = base64.b64decode(image_bytes)

            img = Image.open(io.BytesIO(image_bytes)).convert("RGB")
            tensor = self.transform(img)
            tensors.append(tensor)

        # Stack into a batch tensor [N, 3, 224, 224]
        return torch.stack(tensors).to(self.device)

    def postprocess(self, output: torch.Tensor) -> list:
        """Convert model output tensor to JSON-serializable response.

        output: tensor [N, 1000] - one row per request in the batch.
        """
        probs = torch.softmax(output, dim=1)
        top5_probs, top5_indices = torch.topk(probs, k=5, dim=1)

        results = []
        for i in range(len(top5_probs)):
            result = {
                "predictions": [
                    {
                        "label": self.labels[idx.item()],
                        "probability": prob.item(),
                    }
                    for prob, idx in zip(top5_probs[i], top5_indices[i])
                ]
            }
            results.append(result)

        return results
