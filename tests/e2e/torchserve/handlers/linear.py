"""The architecture of the eager model, as torch-model-archiver takes it with --model-file."""

import torch


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, rows):
        return self.layer(rows)
