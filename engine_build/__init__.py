"""Turns a Hugging Face model folder into a Triton model directory. Never imported by the gateway."""
