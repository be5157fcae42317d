"""What can go wrong while a model is built; the command line shows each as one line.

EngineBuildError
├── ModelFolderError       the model folder lacks a file, or a file says something impossible
├── UnsupportedModelError  the folder is sound, but its vectors could not be reproduced
├── OptionError            an option of the command line contradicts the model
├── MissingExtraError      an optional dependency is needed and not installed
├── ExportError            the ONNX graph could not be made
├── VerificationError      the exported model or the plan differs from the reference
├── EngineError            the TensorRT plan could not be built or run
├── ForeignEngineError     a plan was built for another TensorRT, GPU or model than the one found
└── RepositoryError        the result could not be put in its place
"""


class EngineBuildError(Exception):
    """Base of all; the message is one line for the person at the terminal."""


class ModelFolderError(EngineBuildError):
    """The model folder lacks a file, or a file says something impossible."""


class UnsupportedModelError(EngineBuildError):
    """The folder is sound, but the gateway could not reproduce its vectors."""


class OptionError(EngineBuildError):
    """An option of the command line contradicts the model."""


class MissingExtraError(EngineBuildError):
    """An optional dependency is needed and not installed."""


class ExportError(EngineBuildError):
    """The ONNX graph could not be made."""


class VerificationError(EngineBuildError):
    """The exported model or the plan differs from the reference."""


class RepositoryError(EngineBuildError):
    """The result could not be put in its place."""


class EngineError(EngineBuildError):
    """The TensorRT plan could not be built or run."""


class ForeignEngineError(EngineBuildError):
    """A plan was built for another TensorRT, GPU or model than the one found."""
