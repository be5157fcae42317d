"""Tiny random models as Hugging Face would save them: two layers, hidden size 32, a real tokenizer."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = ["the quick brown fox jumps over the lazy dog", "embeddings naïve café 42 %", "如何更换花呗绑定银行卡?"] * 3
POSITIONS = 64
NUMBERS: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "initializer_range": 0.4,
}


class CopyFolder(Protocol):
    """Type of the fixture `copy_folder`."""

    def __call__(self, kind: str = "bert", files: Mapping[str, Any] | None = None) -> Path:
        """Return the folder of a private copy."""
        ...


def word_piece() -> transformers.PreTrainedTokenizerFast:
    """A BERT tokenizer: [PAD] is 0, [CLS] text [SEP]."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special))
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        model_max_length=POSITIONS,
        **dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True)),
    )


def byte_pairs() -> transformers.PreTrainedTokenizerFast:
    """A RoBERTa tokenizer: <pad> is 1, <s> text </s>, no limit of its own."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    )
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    return transformers.PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        **dict(zip(("bos_token", "pad_token", "eos_token", "unk_token"), special, strict=True)),
    )


def make_folder(path: Path, model: transformers.PreTrainedModel, tokenizer: Any) -> Path:
    """Save a model and its tokenizer as Hugging Face would."""
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def tiny_model(kind: str, **changes: Any) -> transformers.PreTrainedModel:
    """A random encoder; the same numbers give the same weights."""
    torch.manual_seed(7)
    config_class, model_class, positions = {
        "bert": (transformers.BertConfig, transformers.BertModel, POSITIONS),
        "roberta": (transformers.RobertaConfig, transformers.RobertaModel, POSITIONS + 2),
        "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel, POSITIONS + 2),
        "camembert": (transformers.CamembertConfig, transformers.CamembertModel, POSITIONS + 2),
        "distilbert": (transformers.DistilBertConfig, transformers.DistilBertModel, POSITIONS),
        "mpnet": (transformers.MPNetConfig, transformers.MPNetModel, POSITIONS + 2),
    }[kind]
    numbers = NUMBERS | {"max_position_embeddings": positions} | changes
    if kind == "distilbert":
        numbers |= {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4}
        for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
            del numbers[name]
    model: transformers.PreTrainedModel = model_class(config_class(**numbers))
    return model


def change_json(path: Path, content: Any) -> None:
    """Write JSON; an object is merged into the one that is there, and a value of None takes the key out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, dict):
        old = json.loads(path.read_text()) if path.is_file() else {}
        content = {key: value for key, value in (old | content).items() if value is not None}
    path.write_text(json.dumps(content))
