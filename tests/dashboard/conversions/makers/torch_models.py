"""Writes artefacts of PyTorch and Hugging Face with random weights, each in a folder: `python torch_models.py FOLDER`."""

import json
import os
import sys
import textwrap
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn

WORDS = [
    "the",
    "a",
    "good",
    "bad",
    "kind",
    "cruel",
    "people",
    "day",
    "night",
    "so",
    "very",
    "fast",
    "slow",
    "cheap",
    "dear",
]


def folder(name: str) -> Path:
    path = Path(sys.argv[1]) / name
    path.mkdir(parents=True)
    return path


def module(name: str, source: str, make: str, file: str = "model.pt", **more: object) -> None:
    """Write a .py file with a class, and the state_dict of the module that `make` makes."""
    path = folder(name)
    (path / "net.py").write_text(textwrap.dedent(source))
    scope: dict[str, object] = {"__name__": "net"}
    exec((path / "net.py").read_text(), scope)
    torch.manual_seed(0)
    model = eval(make, scope)
    if file.endswith(".safetensors"):
        save_file(model.state_dict(), path / file)
        return
    torch.save({"state_dict": model.state_dict(), **more} if more else model.state_dict(), path / file)


PERCEPTRON = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, hidden=16):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 3))

        def forward(self, rows):
            return self.layers(rows)
"""
IMAGES = """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.conv = nn.Conv2d(channels, channels, 3, padding=1)
            self.norm = nn.BatchNorm2d(channels)

        def forward(self, x):
            return torch.relu(self.norm(self.conv(x))) + x

    class Pictures(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Conv2d(3, 8, 3)
            self.block = Block(8)
            self.head = nn.Linear(8, 4)

        def forward(self, image):
            return {"scores": self.head(self.block(self.first(image)).mean((2, 3)))}
"""
BRANCH = """
    import torch
    from torch import nn

    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, rows):
            if rows.sum() > 0:
                return self.one(rows)
            return self.two(rows)
"""
FIXED = """
    from torch import nn

    class Fixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, rows):
            return self.layer(rows).reshape(3, 2)
"""
PAIR = """
    import torch
    from torch import nn

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(50, 8), nn.Linear(9, 2)

        def forward(self, tokens, age):
            return self.out(torch.cat([self.words(tokens).mean(1), age], 1)), age * 2
"""


def modules() -> None:
    module("state_dict", PERCEPTRON, "Net()")
    module("checkpoint_of_arguments", PERCEPTRON, "Net(32)", epoch=3)
    module("safetensors", PERCEPTRON, "Net()", "model.safetensors")
    module("images", IMAGES, "Pictures()")
    module("branch", BRANCH, "Branch()")
    module("fixed_batch", FIXED, "Fixed()")
    module("two_inputs", PAIR, "Pair()")
    path = folder("torchscript")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    torch.jit.script(net).save(path / "model.pt")
    torch.save(net, folder("whole_module") / "model.pt")
    torch.save(net, folder("mlflow_pytorch") / "model.pth")
    mlmodel = {"flavors": {"python_function": {}, "pytorch": {"model_data": "model.pth", "pytorch_version": "2.13.0"}}}
    (Path(sys.argv[1]) / "mlflow_pytorch" / "MLmodel").write_text(json.dumps(mlmodel))


def wide() -> None:
    """Write an ONNX model whose weights are nearly all of it."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).eval()
    path = folder("onnx_wide") / "model.onnx"
    axes = {"rows": {0: "batch"}, "scores": {0: "batch"}}
    names = {"input_names": ["rows"], "output_names": ["scores"]}
    torch.onnx.export(net, (torch.zeros(1, 256),), path, dynamo=False, opset_version=17, dynamic_axes=axes, **names)


def tokenizer(path: Path, pair: bool = False) -> int:
    """Write a tokenizer of whole words as BERT's; return the number of its tokens."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: at for at, word in enumerate([*special, *WORDS, "##s"])}
    inner = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    kind = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **names, model_max_length=64)
    kind.save_pretrained(path)
    return len(vocabulary)


SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "initializer_range": 0.5,
}


def transformer_models() -> None:
    """Write small models from configurations, so that nothing is downloaded."""
    torch.manual_seed(2)
    t = transformers
    labels = {"id2label": {0: "cruel", 1: "kind", 2: "neither"}, "label2id": {"cruel": 0, "kind": 1, "neither": 2}}

    def text(name: str, kind: type, config: type, **settings: object) -> Path:
        path = folder(name)
        count = tokenizer(path)
        kind(config(vocab_size=count, max_position_embeddings=64, **settings)).eval().save_pretrained(path)
        return path

    text("hf_bert", t.BertForSequenceClassification, t.BertConfig, **SMALL, **labels)
    small = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 16, "initializer_range": 0.5}
    text("hf_distilbert", t.DistilBertForSequenceClassification, t.DistilBertConfig, **small, **labels)
    text("hf_roberta", t.RobertaForSequenceClassification, t.RobertaConfig, pad_token_id=0, **SMALL, **labels)
    text("hf_tokens", t.ElectraForTokenClassification, t.ElectraConfig, embedding_size=16, **SMALL, **labels)
    text("hf_reranker", t.BertForSequenceClassification, t.BertConfig, num_labels=1, **SMALL)
    path = text("hf_embeddings", t.BertModel, t.BertConfig, **SMALL)
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True})
    )
    (path / "modules.json").write_text(
        json.dumps([{"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}])
    )
    text("hf_xlm_roberta", t.XLMRobertaForTokenClassification, t.XLMRobertaConfig, pad_token_id=0, **SMALL, **labels)
    text("hf_deberta", t.DebertaV2ForSequenceClassification, t.DebertaV2Config, **SMALL, **labels)
    text("hf_albert", t.AlbertForSequenceClassification, t.AlbertConfig, embedding_size=16, **SMALL, **labels)
    text("hf_modernbert", t.ModernBertForSequenceClassification, t.ModernBertConfig, pad_token_id=0, **SMALL, **labels)
    text("hf_mpnet", t.MPNetModel, t.MPNetConfig, pad_token_id=0, **SMALL)
    text("hf_generation", t.GPT2LMHeadModel, t.GPT2Config, n_embd=16, n_layer=1, n_head=2)
    path = folder("hf_vit")
    vit = t.ViTConfig(image_size=32, patch_size=8, **SMALL, **labels)
    t.ViTForImageClassification(vit).eval().save_pretrained(path)
    t.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(path)
    path = folder("hf_swin")
    swin = t.SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[1, 2], window_size=4, **labels
    )
    t.SwinForImageClassification(swin).eval().save_pretrained(path)
    t.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(path)
    path = folder("hf_resnet")
    resnet = t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", **labels)
    t.ResNetForImageClassification(resnet).eval().save_pretrained(path)
    t.ConvNextImageProcessor(size={"shortest_edge": 32}, crop_pct=0.875).save_pretrained(path)
    path = folder("mlflow_transformers")
    count = tokenizer(path / "components" / "tokenizer")
    config = t.BertConfig(vocab_size=count, max_position_embeddings=64, **SMALL, **labels)
    t.BertForSequenceClassification(config).eval().save_pretrained(path / "model")
    flavour = {"model_binary": "model", "task": "text-classification", "components": ["tokenizer"]}
    (path / "MLmodel").write_text(json.dumps({"flavors": {"python_function": {}, "transformers": flavour}}))
    path = text("hf_own_code", t.BertModel, t.BertConfig, **SMALL)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "modeling.Own"}}))


if __name__ == "__main__":
    modules()
    wide()
    transformer_models()
