"""Small data for the scripts, made here: nothing is downloaded. Each maker writes below the folder that it is given."""

from __future__ import annotations

import json
import pickle
import random
import struct
from pathlib import Path

import numpy as np

_WORDS = ("sun", "moon", "river", "stone", "bird", "runs", "falls", "sings", "over", "under", "the", "a", "old", "new")


def sentences(count: int, words: int = 12, seed: int = 0) -> list[str]:
    """Sentences of a vocabulary of 14 words."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(_WORDS) for _ in range(words)) for _ in range(count)]


def mnist(folder: Path, train: int, test: int = 64) -> None:
    """``MNIST/raw`` as torchvision reads it: idx files of random images."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name, count in (("train", train), ("t10k", test)):
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, count, dtype=np.uint8)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 0x803, count, 28, 28) + images.tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, count) + labels.tobytes())


def _jpeg(path: Path, size: int, rng: np.random.Generator) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(path, quality=80)


def image_folder(folder: Path, images: int, size: int = 64, classes: int = 4) -> None:
    """JPEG files as ``ImageFolder`` reads them: one folder a class."""
    rng = np.random.default_rng(1)
    for number in range(images):
        _jpeg(folder / f"class{number % classes}" / f"{number:04d}.jpg", size, rng)


def pets(folder: Path, images: int, size: int = 64) -> None:
    """JPEG files named BREED_NUMBER.jpg, as the Oxford-IIIT pets are."""
    rng = np.random.default_rng(2)
    for number in range(images):
        _jpeg(folder / f"{'abc'[number % 3]}_{number}.jpg", size, rng)


def characters(path: Path, count: int) -> None:
    """A text of words."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(sentences(count // 60 + 1))[:count])


def wikitext(folder: Path, tokens: int) -> None:
    """``train.txt``, ``valid.txt`` and ``test.txt``, 13 tokens a line."""
    folder.mkdir(parents=True)
    for seed, (name, count) in enumerate((("train", tokens), ("valid", 1300), ("test", 1300))):
        (folder / f"{name}.txt").write_text("\n".join(sentences(count // 13, seed=seed)) + "\n")


def nanogpt(folder: Path, tokens: int) -> None:
    """``train.bin``, ``val.bin`` and ``meta.pkl`` as nanoGPT's prepare.py leaves them."""
    folder.mkdir(parents=True)
    text = "\n".join(sentences(tokens // 50))
    chars = sorted(set(text))
    stoi = {char: number for number, char in enumerate(chars)}
    ids = np.array([stoi[char] for char in text], dtype=np.uint16)
    cut = int(0.9 * len(ids))
    ids[:cut].tofile(folder / "train.bin")
    ids[cut:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(chars), "stoi": stoi, "itos": dict(enumerate(chars))}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def llm_c_shards(folder: Path, shards: int, tokens: int) -> None:
    """``00.bin`` and so on as llm.c's data scripts write them: a header of 256 integers, then tokens below 64."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(3)
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, tokens
    for number in range(shards):
        ids = rng.integers(0, 64, tokens, dtype=np.uint16)
        (folder / f"{number:02d}.bin").write_bytes(header.tobytes() + ids.tobytes())


def llama2_c_shards(folder: Path, shards: int, tokens: int) -> None:
    """``data00.bin`` and so on as llama2.c's tinystories.py writes them: tokens below 64."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(4)
    for number in range(shards):
        rng.integers(0, 64, tokens, dtype=np.uint16).tofile(folder / f"data{number:02d}.bin")


def sine_waves(path: Path, waves: int, length: int) -> None:
    """Waves of different phase, one a row, as generate_sine_wave.py of PyTorch's examples makes them."""
    import torch

    phase = np.random.default_rng(5).integers(-80, 80, (waves, 1))
    torch.save(np.sin((np.arange(length) + phase) / 20.0).astype("float64"), path)


def tu_graphs(folder: Path, name: str, graphs: int) -> None:
    """The text files of a data set of TU Dortmund: random graphs of 10 to 40 nodes in two classes."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(6)
    edges, indicator, first = [], [], 1
    for graph in range(graphs):
        nodes = int(rng.integers(10, 41))
        indicator += [graph + 1] * nodes
        for _ in range(4 * nodes):
            a, b = (int(node) + first for node in rng.choice(nodes, 2, replace=False))
            edges += [f"{a}, {b}", f"{b}, {a}"]
        first += nodes
    labels = rng.integers(0, 2, graphs)
    for part, lines in (("A", edges), ("graph_indicator", indicator), ("graph_labels", labels)):
        (folder / f"{name}_{part}.txt").write_text("".join(f"{line}\n" for line in lines))


def unet(folder: Path) -> None:
    """The configuration of a small UNet2DModel of diffusers."""
    folder.mkdir()
    config = {
        "_class_name": "UNet2DModel", "sample_size": 32, "in_channels": 3, "out_channels": 3, "layers_per_block": 1,
        "block_out_channels": [32, 64], "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
        "up_block_types": ["AttnUpBlock2D", "UpBlock2D"], "norm_num_groups": 8,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def _tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: number for number, word in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[EOS]", *_WORDS))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="[UNK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]",
        eos_token="[EOS]", model_max_length=128,
    ).save_pretrained(folder)  # fmt: skip


def bert(folder: Path) -> None:
    """A tiny classifier with random weights, and a tokenizer of words."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=32, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
        max_position_embeddings=128,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    _tokenizer(folder)


def causal_model(folder: Path) -> None:
    """A tiny Llama with random weights, and a tokenizer of words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        intermediate_size=512, max_position_embeddings=256, eos_token_id=4, pad_token_id=0,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    _tokenizer(folder)


def text_lines(folder: Path, rows: int, words: int = 60) -> None:
    """``train.jsonl``: a text a line."""
    folder.mkdir(parents=True)
    lines = (json.dumps({"text": text}) for text in sentences(rows, words))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")


def glue(folder: Path, rows: int) -> None:
    """``nyu-mll/glue`` with its configuration mrpc, and the metric ``glue``: the fraction of right answers."""
    data = folder / "nyu-mll" / "glue"
    (data / "mrpc").mkdir(parents=True)
    for seed, (split, count) in enumerate((("train", rows), ("validation", 32))):
        first, second = sentences(count, 16, seed), sentences(count, 16, seed + 10)
        lines = [
            json.dumps({"sentence1": a, "sentence2": b, "label": number % 2, "idx": number})
            for number, (a, b) in enumerate(zip(first, second, strict=True))
        ]
        (data / "mrpc" / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    files = "".join(f"  - split: {split}\n    path: mrpc/{split}.jsonl\n" for split in ("train", "validation"))
    (data / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n")
    (folder / "glue").mkdir()
    (folder / "glue" / "glue.py").write_text(_METRIC)


_METRIC = """
import datasets
import evaluate


class Glue(evaluate.Metric):
    def _info(self):
        features = datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")})
        return evaluate.MetricInfo(description="accuracy", citation="", features=features)

    def _compute(self, predictions, references):
        return {"accuracy": sum(p == r for p, r in zip(predictions, references)) / len(references)}
"""
