"""Says whether an encoder is BERT by its layers, and with which numbers. Called by export and verify; pure.

RoBERTa, XLM-RoBERTa and CamemBERT are BERT with positions that start later, so one description serves them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_build.errors import ModelFolderError
from engine_build.sequence_limit import first_position

BERT_MODEL_TYPES = frozenset({"bert", "roberta", "xlm-roberta", "camembert"})

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
"""Hugging Face's `hidden_act` to the function; several words name the same one."""


@dataclass(frozen=True, slots=True)
class BertArchitecture:
    """The numbers of a BERT encoder.

    Attributes:
        layers: number of encoder layers.
        heads: attention heads of a layer.
        hidden_size: H.
        activation: `gelu` (with erf), `gelu_tanh` or `relu`.
        layer_norm_epsilon: as in config.json.
        first_position: row of the position table that the first token uses.
    """

    layers: int
    heads: int
    hidden_size: int
    activation: str
    layer_norm_epsilon: float
    first_position: int

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.heads


def bert_architecture(config: Mapping[str, Any]) -> BertArchitecture | None:
    """Read config.json; None where the layers are not BERT's.

    Raises:
        ModelFolderError: a number is missing, or the heads do not divide the hidden size.
    """
    activation = ACTIVATIONS.get(config.get("hidden_act", "gelu"))
    if config["model_type"] not in BERT_MODEL_TYPES or activation is None or config.get("is_decoder"):
        return None
    try:
        architecture = BertArchitecture(
            layers=int(config["num_hidden_layers"]),
            heads=int(config["num_attention_heads"]),
            hidden_size=int(config["hidden_size"]),
            activation=activation,
            layer_norm_epsilon=float(config.get("layer_norm_eps", 1e-12)),
            first_position=first_position(dict(config)),
        )
    except KeyError as exc:
        raise ModelFolderError(f"config.json has no `{exc.args[0]}`") from None
    if architecture.hidden_size % architecture.heads:
        raise ModelFolderError(
            f"config.json: {architecture.heads} heads do not divide hidden_size {architecture.hidden_size}"
        )
    return architecture
