"""Turns a Hugging Face model folder into a Triton model directory. Never imported by the gateway."""

import os

# The wheel's ONNX Runtime starts a telemetry client when it is imported, unless told not to (observed, 1.32).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
