"""The models that are measured: the demo model, and a toy of one layer, so that only the overhead counts."""

import json
import logging
import shutil
from pathlib import Path

from bench.processes import ROOT
from engine_build.cli import main as build_engine

DEMO_MODEL = ROOT / "models" / "all-MiniLM-L6-v2"
REPOSITORIES = ROOT / ".cache" / "bench"
TOY_HIDDEN_SIZE = 64


def demo_repository() -> Path:
    """Build the demo model, and return its repository."""
    return _build(DEMO_MODEL)


def toy_repository() -> tuple[Path, Path]:
    """Build a BERT of one layer with the demo model's tokenizer; return its folder and its repository."""
    folder = REPOSITORIES / "toy"
    if not (folder / "modules.json").is_file():
        _make_toy(folder)
    return folder, _build(folder)


def _build(folder: Path) -> Path:
    repository = REPOSITORIES / f"{folder.name}_repo"
    level = logging.root.level
    if build_engine(["all", "--model", str(folder), "--target", "embedded", "--repo", str(repository)]):
        raise SystemExit(1)
    logging.root.setLevel(level)
    return repository


def _make_toy(folder: Path) -> None:
    import torch  # noqa: PLC0415 - takes seconds
    from transformers import BertConfig, BertModel  # noqa: PLC0415

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=30_522,
        hidden_size=TOY_HIDDEN_SIZE,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
    )
    folder.mkdir(parents=True, exist_ok=True)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    own_files = {"config.json", "model.safetensors", "README.md", "data_config.json"}
    for path in DEMO_MODEL.iterdir():
        if path.is_file() and path.name not in own_files:
            shutil.copy(path, folder / path.name)
    pooling = json.loads((DEMO_MODEL / "1_Pooling" / "config.json").read_text())
    (folder / "1_Pooling").mkdir(exist_ok=True)
    pooling["word_embedding_dimension"] = TOY_HIDDEN_SIZE
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "2_Normalize").mkdir(exist_ok=True)
