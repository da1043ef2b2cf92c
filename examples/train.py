"""Trains the digit models in examples/models from scikit-learn's digits, and writes their test data.

    python examples/train.py            (or: make examples)

The same machine and the same versions of the libraries give the same weights. A fifth of the rows is held out, never trained
on, and kept in examples/holdout/digits.npz: `images` uint8 [360, 8, 8], 0 to 16, and `labels` uint8 [360].
"""

import io
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto
from PIL import Image, ImageFilter
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HERE = Path(__file__).parent
MODELS = HERE / "models"
HOLDOUT = HERE / "holdout" / "digits.npz"
REQUIRED_ACCURACY = 0.97

sys.path.insert(0, str(MODELS / "digits_preprocess" / "1"))
from ink import fit  # noqa: E402

Images = NDArray[np.float32]  # [n, 8, 8], 0 to 16
Labels = NDArray[np.int64]  # [n]


class Digits(nn.Module):
    """Pixels of 0 to 16, shape [batch, 1, 8, 8] -> logits and probabilities, [batch, 10] each."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.layers(image / 16.0)
        return logits, torch.softmax(logits, dim=1)


def perceptron() -> Digits:
    return Digits(nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 10)))


def convolutional() -> Digits:
    return Digits(
        nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.25),
            nn.Linear(512, 48),
            nn.ReLU(),
            nn.Linear(48, 10),
        )
    )


def split() -> tuple[Images, Images, Labels, Labels]:
    """Return the training images, held-out images, training labels and held-out labels."""
    digits = load_digits()
    images, labels = digits.images.astype(np.float32), digits.target.astype(np.int64)
    parts: tuple[Images, Images, Labels, Labels] = train_test_split(
        images, labels, test_size=0.2, random_state=0, stratify=labels
    )
    return parts


def drawn(image: Images, random: np.random.Generator) -> Images:
    """Return an image as a person might draw it: turned, slanted, stretched, with another pen, and fitted again."""
    side = 96
    large = Image.fromarray(image / 16.0).resize((side, side), Image.Resampling.BICUBIC)
    canvas = Image.new("F", (2 * side, 2 * side))
    canvas.paste(large, (side // 2, side // 2))
    turn, slant = np.radians(random.uniform(-12, 12)), random.uniform(-0.2, 0.2)
    stretch_x, stretch_y = random.uniform(0.75, 1.25, size=2)
    a, b = np.cos(turn) * stretch_x, (np.sin(turn) + slant) * stretch_x
    c, d = -np.sin(turn) * stretch_y, np.cos(turn) * stretch_y
    matrix = (a, b, side - side * (a + b), c, d, side - side * (c + d))
    canvas = canvas.transform(canvas.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    grey = Image.fromarray((np.clip(np.asarray(canvas), 0, 1) > random.uniform(0.3, 0.6)).astype(np.uint8) * 255)
    pen = random.choice([None, ImageFilter.MinFilter(3), ImageFilter.MinFilter(5), ImageFilter.MaxFilter(5)])
    inked = grey.filter(pen) if pen is not None else grey
    return fit(np.asarray(inked, dtype=np.float32) / 255)


def train(model: Digits, images: Images, labels: Labels, *, epochs: int) -> None:
    inputs, targets = torch.from_numpy(images).unsqueeze(1), torch.from_numpy(labels)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)
    steps = epochs * (len(inputs) // 128 + 1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=6e-3, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(128):
            loss = nn.functional.cross_entropy(model(inputs[rows])[0], targets[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    model.eval()


def accuracy(model: Digits, images: Images, labels: Labels) -> float:
    with torch.inference_mode():
        logits, _ = model(torch.from_numpy(images).unsqueeze(1))
    return float((logits.argmax(1).numpy() == labels).mean())


def export_onnx(model: Digits, path: Path) -> None:
    """Export with a dynamic batch dimension."""
    program = torch.onnx.export(
        model,
        (torch.zeros(2, 1, 8, 8),),
        input_names=["image"],
        output_names=["logits", "probabilities"],
        dynamic_shapes={"image": {0: torch.export.Dim("batch")}},
        dynamo=True,
        verbose=False,
    )
    path.write_bytes(clean(program.model_proto))


def clean(message: ModelProto) -> bytes:
    """Return a model's bytes without the paths of its source files."""
    graph = message.graph
    for part in [message, graph, *graph.node, *graph.value_info, *graph.input, *graph.output, *graph.initializer]:
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    content: bytes = message.SerializeToString(deterministic=True)
    return content


def export_torchscript(model: Digits, path: Path) -> None:
    """Export the traced model, without the records that map its code to source files."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        content = io.BytesIO()
        torch.jit.save(torch.jit.trace(model, torch.zeros(2, 1, 8, 8)), content)
    with zipfile.ZipFile(content) as whole, zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for entry in whole.infolist():
            if not entry.filename.endswith(".debug_pkl"):
                file.writestr(zipfile.ZipInfo(entry.filename), whole.read(entry))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    images, held_out, labels, held_out_labels = split()
    random = np.random.default_rng(0)
    copies = 8
    varied = np.stack([drawn(image, random) for _ in range(copies) for image in images])
    fitted = np.stack([fit(image / 16.0) for image in images])
    all_images = np.concatenate([images, fitted, varied])
    all_labels = np.concatenate([labels] * (copies + 2))
    models = {"1 (perceptron)": perceptron(), "2 (convolutional)": convolutional()}
    for name, model in models.items():
        train(model, all_images, all_labels, epochs=30)
        share = accuracy(model, held_out, held_out_labels)
        print(f"digits version {name}: {share:.2%} of {len(held_out)} held-out rows")
        if share < REQUIRED_ACCURACY:
            raise SystemExit(f"expected at least {REQUIRED_ACCURACY:.0%}")
    first, second = models.values()
    export_onnx(first, MODELS / "digits/1/model.onnx")
    export_onnx(second, MODELS / "digits/2/model.onnx")
    export_torchscript(second, MODELS / "digits_torch/1/model.pt")
    np.savez_compressed(HOLDOUT, images=held_out.astype(np.uint8), labels=held_out_labels.astype(np.uint8))


if __name__ == "__main__":
    main()
