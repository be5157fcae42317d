"""An async, OpenAI-compatible embeddings gateway in front of NVIDIA Triton."""

__version__ = "0.1.0"
