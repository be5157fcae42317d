"""Texts through a gateway and a Triton that run already, compared with the FP32 graph of each model's build.

    python whole_path.py GATEWAY_URL BUILD_FOLDER MODEL ...

Prints the least cosine of each model; ends with 1 when one is below 0.999.
"""

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from engine_build.onnx_encoder import OnnxEncoder
from engine_build.vectors import sentence_vectors
from gateway.contract import Pooling

TEXTS = [
    "hello",
    "The quick brown fox jumps over the lazy dog.",
    "如何更换花呗绑定银行卡?",
    *(f"text number {number} " + "and more words " * number for number in range(24)),
]


def embed(url: str, model: str, texts: list[str]) -> Any:
    """Vectors of the gateway."""
    body = json.dumps({"model": model, "input": texts, "truncate": "END"}).encode()
    request = urllib.request.Request(f"{url}/v1/embeddings", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return np.array([one["embedding"] for one in json.load(answer)["data"]], np.float32)


def reference(folder: Path, texts: list[str], pooling: Pooling, limit: int) -> Any:
    """Vectors of the FP32 graph, one text at a time."""
    tokenizer, encoder = Tokenizer.from_file(str(folder / "tokenizer.json")), OnnxEncoder(folder / "reference.onnx")
    tokenizer.enable_truncation(limit)
    vectors = []
    for text in texts:
        ids = np.array([tokenizer.encode(text).ids], np.int32)
        mask = np.ones_like(ids)
        vectors.append(sentence_vectors(encoder.run(ids, mask), mask, pooling)[0])
    return np.stack(vectors)


def main(url: str, build: Path, models: list[str]) -> int:
    """Compare every model."""
    with urllib.request.urlopen(f"{url}/health/ready", timeout=10) as answer:
        print("ready:", answer.read().decode())
    good = True
    for model in models:
        limit = json.loads((build.parent / "repository" / model / "manifest.json").read_text())["recipe"]
        wanted = reference(build / model, TEXTS, Pooling(limit["pooling"]), limit["max_sequence_length"])
        least = float((embed(url, model, TEXTS) * wanted).sum(axis=1).min())
        good = good and least >= 0.999
        print(f"{model}: {len(TEXTS)} texts through the gateway, least cosine {least:.6f}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:]))
