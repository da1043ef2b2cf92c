"""Trains the text models in examples/models: a WordPiece vocabulary, and a small BERT-like classifier of a message's topic.

    python examples/train_text.py       (or: make examples)

The messages are from text_messages.py. The test data is written to examples/holdout/messages.json.
"""

import json
from pathlib import Path

import torch
from text_messages import HELD_OUT, TOPICS, TRAINED, doubled, messages
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordPieceTrainer
from torch import nn
from train import clean

HERE = Path(__file__).parent
MODELS = HERE / "models"
HOLDOUT = HERE / "holdout" / "messages.json"
REQUIRED_ACCURACY = 0.93

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = 900
HIDDEN = 0.3  # the share of words that is hidden while training
WIDTH, HEADS, LAYERS, POSITIONS = 64, 4, 2, 64


def trained_tokenizer(texts: list[str]) -> Tokenizer:
    """Return a WordPiece tokenizer: lower case, `[CLS] text [SEP]`, at most POSITIONS tokens."""
    tokenizer = Tokenizer(WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.train_from_iterator(texts, WordPieceTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL))
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.enable_truncation(POSITIONS)
    return tokenizer


class Layer(nn.Module):
    """Self-attention and a feed-forward network, each with a residual and a normalisation after it. [n, t, WIDTH]"""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: a mask [n, 1, 1, t] that is added to the attention, large and negative at padding."""
        n, t, _ = x.shape
        query, key, value = self.project(x).reshape(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(-1, -2) / (WIDTH // HEADS) ** 0.5 + hidden, dim=-1)
        mixed = (weights @ value).transpose(1, 2).reshape(n, t, WIDTH)
        x = self.norms[0](x + self.dropout(self.mix(mixed)))
        return self.norms[1](x + self.dropout(self.think(x)))


class Classifier(nn.Module):
    """`input_ids` and `attention_mask` int64 [n, t] -> `logits` and `scores` float32 [n, topics], of the words' mean."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])
        self.topics = nn.Linear(WIDTH, len(TOPICS))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.norm(self.words(input_ids) + self.positions(places))
        hidden = (1.0 - attention_mask[:, None, None, :].to(torch.float32)) * -1e4
        for layer in self.layers:
            x = layer(x, hidden)
        words = attention_mask.unsqueeze(-1).to(torch.float32)
        logits = self.topics((x * words).sum(1) / words.sum(1))
        return logits, torch.softmax(logits, dim=1)


def encoded(tokenizer: Tokenizer, texts: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and the mask, int64 [n, longest]."""
    tokenizer.enable_padding()
    rows = tokenizer.encode_batch(texts)
    tokenizer.no_padding()
    return torch.tensor([row.ids for row in rows]), torch.tensor([row.attention_mask for row in rows])


def train(model: Classifier, ids: torch.Tensor, mask: torch.Tensor, topics: torch.Tensor, *, epochs: int) -> None:
    """Train the model. Some words are hidden in each step, so that the model does not depend on single words."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, max_lr=2e-3, total_steps=epochs * len(torch.arange(len(ids)).split(64))
    )
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(ids)).split(64):
            hide = (torch.rand(ids[rows].shape) < HIDDEN) & (ids[rows] >= len(SPECIAL))
            logits, _ = model(ids[rows].masked_fill(hide, SPECIAL.index("[MASK]")), mask[rows])
            loss = nn.functional.cross_entropy(logits, topics[rows], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    model.eval()


def export(model: Classifier, path: Path) -> None:
    """Export with dynamic batch and sequence dimensions."""
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=POSITIONS)}
    example = torch.ones(2, 9, dtype=torch.int64)
    program = torch.onnx.export(
        model,
        (example, example.clone()),  # one tensor twice would become one input
        input_names=["input_ids", "attention_mask"],
        output_names=["logits", "scores"],
        dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
        dynamo=True,
        verbose=False,
    )
    path.write_bytes(clean(program.model_proto))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    texts, topics = doubled(*messages(TRAINED, 40, seed=0), seed=2)
    held_out, held_out_topics = messages(HELD_OUT, 20, seed=1)
    tokenizer = trained_tokenizer(texts)
    model = Classifier(tokenizer.get_vocab_size())
    train(model, *encoded(tokenizer, texts), torch.tensor(topics), epochs=10)
    with torch.inference_mode():
        answers = model(*encoded(tokenizer, held_out))[0].argmax(1)
    share = float((answers == torch.tensor(held_out_topics)).float().mean())
    print(f"text_classifier: {share:.2%} of {len(held_out)} held-out messages")
    if share < REQUIRED_ACCURACY:
        raise SystemExit(f"expected at least {REQUIRED_ACCURACY:.0%}")
    tokenizer.save(str(MODELS / "text_tokenizer/1/tokenizer.json"), pretty=False)
    export(model, MODELS / "text_classifier/1/model.onnx")
    for name in ("text_classifier", "text_pipeline"):
        (MODELS / name / "labels.txt").write_text("".join(f"{topic}\n" for topic in TOPICS))
    rows = [{"text": text, "topic": TOPICS[topic]} for text, topic in zip(held_out, held_out_topics, strict=True)]
    HOLDOUT.write_text(json.dumps(rows, indent=0) + "\n")


if __name__ == "__main__":
    main()
