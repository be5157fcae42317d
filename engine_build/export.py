"""Turns a model folder into an ONNX graph by the better of two ways, and writes it. Called by build and cli."""

import logging
from pathlib import Path

import onnx

from engine_build import build_extra
from engine_build.architecture import bert_architecture
from engine_build.bert_graph import write_bert_graph
from engine_build.errors import ExportError
from engine_build.model_folder import ModelFolder
from engine_build.pooling_head import pooled
from engine_build.precision import PLAIN, FloatType, GraphForm
from engine_build.weights import read_weights

logger = logging.getLogger(__name__)


def export_onnx(folder: ModelFolder, path: Path, form: GraphForm = PLAIN) -> None:
    """Write one self-contained ONNX file: opset 17, INT32 ids and mask, dynamic batch and sequence.

    Raises:
        ExportError: the graph could not be made, or is not valid ONNX.
        MissingExtraError: the architecture needs torch and it is not installed.
    """
    graph = make_graph(folder, form)
    try:
        onnx.checker.check_model(graph)
        # Strict: a type that does not match would be an error of TensorRT's strongly typed networks.
        onnx.shape_inference.infer_shapes(graph, check_type=True, strict_mode=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as exc:
        raise ExportError(f"the exported graph is not valid ONNX: {exc}") from exc
    path.write_bytes(graph.SerializeToString())
    logger.info("wrote %s, %.1f MB", path.name, path.stat().st_size / 1e6)


def make_graph(folder: ModelFolder, form: GraphForm = PLAIN) -> onnx.ModelProto:
    """The graph in memory: written directly where the layers are BERT's, else traced by torch.

    Raises:
        ExportError: it could not be made.
        MissingExtraError: the architecture needs torch and it is not installed.
    """
    encoder = _encoder_graph(folder, form, form.output if form.pooling is None else FloatType.FP32)
    if form.pooling is None:
        return encoder
    return pooled(encoder, form.pooling, folder.hidden_size, form.output)


def _encoder_graph(folder: ModelFolder, form: GraphForm, output: FloatType) -> onnx.ModelProto:
    precision = form.precision
    architecture = bert_architecture(folder.config)
    if architecture is not None:
        logger.info("writing the %s graph from its weights, %s", folder.model_type, precision)
        weights = read_weights(folder.weight_files)
        return write_bert_graph(architecture, weights, precision, output, row_gelu=form.row_gelu)
    build_extra.require(f"exporting a {folder.model_type} model")
    from engine_build.torch_encoder import load_torch_encoder  # noqa: PLC0415 - torch is optional
    from engine_build.torch_export import export_torch_graph  # noqa: PLC0415

    logger.info("exporting the %s graph through torch, %s", folder.model_type, precision)
    return export_torch_graph(load_torch_encoder(folder), folder.vocab_size, precision, output)
