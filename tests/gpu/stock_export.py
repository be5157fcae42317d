"""Writes the ONNX file that a Hugging Face model gives by itself, for comparison with engine_build's.

    python stock_export.py FOLDER FILE

Eager attention through torch's tracing exporter, opset 17 and INT32 inputs, which TensorRT 8.6 needs.
"""

import sys
import warnings
from pathlib import Path

import onnx
import torch
from transformers import AutoModel


class TokenEmbeddings(torch.nn.Module):
    """Gives the last hidden state alone."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Token embeddings."""
        hidden: torch.Tensor = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return hidden


def main(folder: Path, file: Path) -> None:
    """Export."""
    encoder = AutoModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()
    example = torch.ones(2, 8, dtype=torch.int32)
    axes = {0: "batch", 1: "sequence"}
    names = ["input_ids", "attention_mask", "last_hidden_state"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            TokenEmbeddings(encoder),
            (example, example),
            file,
            input_names=names[:2],
            output_names=names[2:],
            dynamic_axes=dict.fromkeys(names, axes),
            opset_version=17,
            dynamo=False,
        )
    model = onnx.load(file)
    model.ir_version = 8  # TensorRT 8.6 refuses newer ones
    onnx.save(model, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
