"""An async, OpenAI-compatible embeddings gateway in front of NVIDIA Triton."""
