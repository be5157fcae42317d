"""The real tritonserver that ships in the wheel `nvidia-pytriton`, for machines without a GPU or Docker.

Facts about Triton without another source: observed, Triton 2.51 in nvidia-pytriton 0.7.0.
"""

from gateway.embedded.server import EmbeddedTriton

__all__ = ["EmbeddedTriton"]
