"""The way from a model folder to a verified plan, step by step, in the build folder. Called by plan_assembly and cli.

Order: FP32 graph, its verification, the graph for TensorRT, the plan, the plan's verification.
"""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from engine_build.engine_recipe import EngineRecipe
from engine_build.export import export_onnx
from engine_build.file_hash import sha256
from engine_build.graph_islands import fp32_layers
from engine_build.model_folder import ModelFolder
from engine_build.onnx_encoder import OnnxEncoder
from engine_build.plan import Plan, open_plan
from engine_build.precision import GraphForm, Precision
from engine_build.recipe import Recipe
from engine_build.reference import ReferenceKind
from engine_build.report import Report
from engine_build.texts import sample_texts
from engine_build.tools import Tools
from engine_build.trtexec import LOG_FILE, PLAN_FILE, UNFINISHED_PLAN, Trtexec, build_plan
from engine_build.trtexec_arguments import ONNX_FILE, build_arguments
from engine_build.vectors import BatchRun
from engine_build.verify import verify
from engine_build.verify_plan import Sample, check_range, make_sample, verify_vectors
from engine_build.work_folder import WorkFolder
from gateway.contract import ATTENTION_MASK, INPUT_IDS

logger = logging.getLogger(__name__)

REFERENCE_FILE = "reference.onnx"
REFERENCE_REPORT = "reference.json"
VECTORS_FILE = "reference.npz"
GRAPH_REPORT = "graph.json"
PLAN_REPORT = "verified.json"
TEXTS_FOR_GRAPH = 60
"""Enough to see an overflow before TensorRT takes its minutes."""


class EngineSteps:
    """The steps of one model's build, to be called in their order; what was made before is used again."""

    def __init__(
        self, folder: ModelFolder, recipe: Recipe, source: dict[str, Any], tokenizer: Tokenizer, work: WorkFolder
    ) -> None:
        self._folder, self._work = folder, work
        self.recipe, self.source, self.tokenizer = recipe, source, tokenizer

    def reference(self, kind: ReferenceKind) -> dict[str, Any]:
        """The FP32 graph, compared with the model's own code; returns what was compared."""

        def make() -> None:
            path = self._path(REFERENCE_FILE)
            export_onnx(self._folder, path)
            result = verify(self._folder, path, self.tokenizer, kind)
            self._path(REFERENCE_REPORT).write_text(json.dumps(result.as_json()) + "\n", encoding="utf-8")

        self._work.step("reference", [self.source, kind], [REFERENCE_FILE, REFERENCE_REPORT], make)
        return self._read(REFERENCE_REPORT)

    def sample(self, count: int) -> Sample:
        """Texts and their vectors by the FP32 graph."""
        recipe = self.recipe
        texts = sample_texts(self.tokenizer, self._folder, recipe.max_sequence_length, count)

        def make() -> None:
            sample = make_sample(self._path(REFERENCE_FILE), texts, recipe)
            np.savez(self._path(VECTORS_FILE), vectors=sample.vectors)

        inputs = [sha256(self._path(REFERENCE_FILE)), texts, recipe.pooling]
        self._work.step("vectors", inputs, [VECTORS_FILE], make)
        with np.load(self._path(VECTORS_FILE)) as stored:
            return Sample(texts, stored["vectors"], self._path(REFERENCE_FILE))

    def graph(self, sample: Sample) -> None:
        """The graph that TensorRT reads, tried on a few texts where ONNX Runtime can run it."""
        recipe = self.recipe

        def make() -> None:
            export_onnx(self._folder, self._path(ONNX_FILE), recipe.graph)
            report = self._try_graph(sample)
            self._path(GRAPH_REPORT).write_text(json.dumps(report and report.as_json()) + "\n", encoding="utf-8")

        inputs = [self.source, recipe.as_json()["graph"], sha256(self._path(REFERENCE_FILE))]
        self._work.step("graph", inputs, [ONNX_FILE, GRAPH_REPORT], make)

    def plan(self, tools: Tools) -> None:
        """The plan, built and run by trtexec."""
        form, engine = self.recipe.graph, self._engine
        arguments = self.arguments(tools.trtexec)

        def make() -> None:
            ids = self.tokenizer.encode("The plan is run on these words.").ids
            build_plan(tools.trtexec, engine, form, self._work.path, ids, self._islands(form, tools.trtexec))

        inputs = [sha256(self._path(ONNX_FILE)), arguments, str(tools.trtexec.version), tools.machine.as_json()]
        self._work.step("plan", inputs, [PLAN_FILE, LOG_FILE], make)

    def arguments(self, trtexec: Trtexec) -> list[str]:
        """Trtexec's arguments; the graph must be there where they name layers of it."""
        form = self.recipe.graph
        return build_arguments(self._engine, form, trtexec.version, UNFINISHED_PLAN, self._islands(form, trtexec))

    def verify_plan(self, tools: Tools, sample: Sample) -> dict[str, Any]:
        """The plan against the reference; returns the report's figures."""

        def make() -> None:
            with open_plan(tools.python, self._path(PLAN_FILE)) as plan:
                report = verify_vectors(plan_run(plan), "the plan", sample, self.recipe, self.tokenizer)
            self._path(PLAN_REPORT).write_text(json.dumps(report.as_json(), indent=1) + "\n", encoding="utf-8")

        inputs = [sha256(self._path(PLAN_FILE)), sha256(self._path(VECTORS_FILE)), self.recipe.as_json()]
        self._work.step("verification", inputs, [PLAN_REPORT], make)
        return self._read(PLAN_REPORT)

    @property
    def _engine(self) -> EngineRecipe:
        assert self.recipe.engine is not None  # noqa: S101 - the recipe of target tensorrt has one
        return self.recipe.engine

    def _try_graph(self, sample: Sample) -> Report | None:
        if self.recipe.graph.precision is Precision.BF16:
            logger.info("ONNX Runtime runs no BF16 on CPUs; the plan's verification will tell")
            return None
        few = replace(sample, texts=sample.texts[:TEXTS_FOR_GRAPH], vectors=sample.vectors[:TEXTS_FOR_GRAPH])
        if self.recipe.graph.precision is Precision.FP16:
            # ONNX Runtime computes half graphs in FP32 on CPUs, so it would not overflow where a GPU does.
            check_range(few, self.recipe)
        run = OnnxEncoder(self._path(ONNX_FILE)).run
        return verify_vectors(run, "the graph for TensorRT", few, self.recipe, self.tokenizer)

    def _islands(self, form: GraphForm, trtexec: Trtexec) -> list[str]:
        if form.precision is not Precision.MIXED or trtexec.version.strongly_typed:
            return []
        return fp32_layers(self._path(ONNX_FILE))

    def _path(self, name: str) -> Path:
        return self._work.path / name

    def _read(self, name: str) -> dict[str, Any]:
        return dict(json.loads(self._path(name).read_text(encoding="utf-8")))


def plan_run(plan: Plan) -> BatchRun:
    """Run batches on a plan."""

    def run(input_ids: Any, attention_mask: Any) -> Any:
        kinds = {tensor.name: tensor.dtype for tensor in plan.facts.tensors}
        arrays = {INPUT_IDS: input_ids, ATTENTION_MASK: attention_mask}
        outputs = plan.run({name: array.astype(kinds[name], copy=False) for name, array in arrays.items()})
        return next(iter(outputs.values()))

    return run
