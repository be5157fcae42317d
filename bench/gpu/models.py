"""What the measured models are: read from their directories."""

import random
from pathlib import Path

from google.protobuf import json_format, text_format
from tokenizers import Tokenizer
from tritonclient.grpc import model_config_pb2

from gateway.contract import CONFIG_FILE, TOKENIZER_FILE
from gateway.model_spec import parse_model_spec
from gateway.types import ModelSpec

_WORDS = 2000


def read_spec(repository: Path, name: str) -> ModelSpec:
    """Return what the gateway reads of a model."""
    message = text_format.Parse((repository / name / CONFIG_FILE).read_text(), model_config_pb2.ModelConfig())
    return parse_model_spec(json_format.MessageToDict(message, preserving_proto_field_name=True))


def one_token_words(repository: Path, name: str) -> list[str]:
    """Return some words of the model's vocabulary that are one token each, always the same."""
    tokenizer = Tokenizer.from_file(str(repository / name / TOKENIZER_FILE))
    words = sorted(word for word in tokenizer.get_vocab() if word.isalpha())
    random.Random(0).shuffle(words)
    encodings = tokenizer.encode_batch(words[: 2 * _WORDS], add_special_tokens=False)
    return [word for word, encoding in zip(words, encodings, strict=False) if len(encoding.ids) == 1][:_WORDS]
