"""A BERT encoder in plain numpy, as the paper has it, to be read and trusted. Called by reference; pure.

One sequence at a time, no padding, no mask, nothing folded: it shares no shortcut with bert_graph.
"""

import numpy as np
from numpy.typing import NDArray

from engine_build.architecture import BertArchitecture
from engine_build.weights import Weights


class NumpyBert:
    """The encoder; n tokens, H hidden size, A heads, D = H / A."""

    def __init__(self, architecture: BertArchitecture, weights: Weights) -> None:
        self._architecture = architecture
        self._weights = weights

    def token_embeddings(self, input_ids: list[int]) -> NDArray[np.float32]:
        """Run one unpadded sequence; float32 [n,H]."""
        hidden = self._embeddings(input_ids)
        for layer in range(self._architecture.layers):
            hidden = self._attention(f"encoder.layer.{layer}.attention", hidden)
            hidden = self._feed_forward(f"encoder.layer.{layer}", hidden)
        return hidden

    def _embeddings(self, input_ids: list[int]) -> NDArray[np.float32]:
        first = self._architecture.first_position
        words = self._weights["embeddings.word_embeddings.weight"][input_ids]
        positions = self._weights["embeddings.position_embeddings.weight"][first : first + len(input_ids)]
        token_type = self._weights["embeddings.token_type_embeddings.weight"][0]
        return self._layer_norm("embeddings.LayerNorm", words + positions + token_type)

    def _attention(self, name: str, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        query = self._heads(self._linear(f"{name}.self.query", hidden))
        key = self._heads(self._linear(f"{name}.self.key", hidden))
        value = self._heads(self._linear(f"{name}.self.value", hidden))
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(np.float32(self._architecture.head_size))
        context = (softmax(scores) @ value).transpose(1, 0, 2).reshape(hidden.shape)
        return self._layer_norm(f"{name}.output.LayerNorm", hidden + self._linear(f"{name}.output.dense", context))

    def _feed_forward(self, name: str, hidden: NDArray[np.float32]) -> NDArray[np.float32]:
        activation = ACTIVATION_FUNCTIONS[self._architecture.activation]
        wide = activation(self._linear(f"{name}.intermediate.dense", hidden))
        return self._layer_norm(f"{name}.output.LayerNorm", hidden + self._linear(f"{name}.output.dense", wide))

    def _heads(self, value: NDArray[np.float32]) -> NDArray[np.float32]:
        """[n,H] to [A,n,D]."""
        return value.reshape(-1, self._architecture.heads, self._architecture.head_size).transpose(1, 0, 2)

    def _linear(self, name: str, value: NDArray[np.float32]) -> NDArray[np.float32]:
        product: NDArray[np.float32] = value @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]
        return product

    def _layer_norm(self, name: str, value: NDArray[np.float32]) -> NDArray[np.float32]:
        centred = value - value.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        unit = centred / np.sqrt(variance + np.float32(self._architecture.layer_norm_epsilon))
        scaled: NDArray[np.float32] = unit * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]
        return scaled


def softmax(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Over the last axis."""
    exponentials = np.exp(scores - scores.max(-1, keepdims=True))
    shares: NDArray[np.float32] = exponentials / exponentials.sum(-1, keepdims=True)
    return shares


def erf(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """Error function, to within 1.5e-7. Source: Abramowitz and Stegun, formula 7.1.26."""
    t = 1.0 / (1.0 + 0.3275911 * np.abs(value))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    signed: NDArray[np.float32] = np.sign(value) * (1.0 - series * np.exp(-(value**2)))
    return signed


def gelu(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """The input times the normal distribution's share below it."""
    return value * (1.0 + erf(value / np.sqrt(np.float32(2.0)))) / 2.0


def gelu_tanh(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """The older approximation of it."""
    share: NDArray[np.float32] = 1.0 + np.tanh(np.sqrt(np.float32(2.0 / np.pi)) * (value + 0.044715 * value**3))
    return value * share / 2.0


def relu(value: NDArray[np.float32]) -> NDArray[np.float32]:
    """The input where positive, else 0."""
    positive: NDArray[np.float32] = np.maximum(value, np.float32(0.0))
    return positive


ACTIVATION_FUNCTIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}
