# save_model_for_torchserve.py

import torch
from torchvision import models

# Step 1: Train or load your model
model = models.resnet50(pretrained=True)
model.eval()

# Step 2: Convert to TorchScript (required for TorchServe)
# TorchScript is a subset of Python that can be compiled and exported
example_input = torch.randn(1, 3, 224, 224)
scripted_model = torch.jit.script(model)
scripted_model.save("resnet50_scripted.pt")

# Alternatively, use torch.jit.trace for simpler models
traced_model = torch.jit.trace(model, example_input)
traced_model.save("resnet50_traced.pt")
