"""Takes trtexec's arguments and builds with the Python package of TensorRT 8.6, where there is no trtexec.

The package's wheel has the builder but no trtexec. This program stands in for it so that engine_build's own way - find,
build, log, load, check - is what runs. It knows the arguments that engine_build gives to 8.6 and refuses all others, as
trtexec does. Needs the tensorrt package, numpy and a GPU.

    trtexec_by_wheel.py --onnx=model.onnx --saveEngine=model.plan --minShapes=... --fp16 --skipInference
    trtexec_by_wheel.py --loadEngine=model.plan --shapes=... --loadInputs=input_ids:ids.raw,attention_mask:mask.raw
"""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorrt as trt

sys.path.insert(0, str(Path(__file__).parents[2] / "engine_build" / "templates"))
from plan_process import Driver, Plan, PlanError

FLAGS = {"fp16", "noTF32", "skipInference", "help"}
VALUES = {
    "onnx", "saveEngine", "loadEngine", "minShapes", "optShapes", "maxShapes", "shapes", "memPoolSize", "loadInputs",
    "builderOptimizationLevel", "inputIOFormats", "outputIOFormats", "precisionConstraints", "layerPrecisions",
    "layerOutputTypes", "warmUp", "duration", "iterations",
}  # fmt: skip
TYPES = {"fp32": trt.float32, "fp16": trt.float16, "int32": trt.int32}
MIB = 20
Options = dict[str, str]
Shape = tuple[int, ...]


class Failure(Exception):
    """What trtexec would print as an error."""


def parse(arguments: list[str]) -> Options:
    """Arguments by name; raises Failure for one that trtexec 8.6 would not get from engine_build."""
    options = {}
    for argument in arguments:
        name, equals, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in (VALUES if equals else FLAGS):
            raise Failure(f"Unknown option: {argument}")
        options[name] = value
    return options


def shapes(text: str) -> dict[str, Shape]:
    """Read `input_ids:1x1,attention_mask:1x1`."""
    named = (part.split(":") for part in text.split(","))
    return {name: tuple(int(size) for size in sizes.split("x")) for name, sizes in named}


def build(options: Options) -> None:
    """Parse, configure, build, write."""
    logger = trt.Logger(trt.Logger.INFO)
    trt.init_libnvinfer_plugins(logger, "")
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH))
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(os.path.abspath(options["onnx"])):
        errors = "; ".join(str(parser.get_error(index)) for index in range(parser.num_errors))
        raise Failure(f"Failed to parse onnx file: {errors}")
    config = configure(builder, network, options)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise Failure("Engine could not be created from network")
    Path(options["saveEngine"]).write_bytes(plan)
    print(f"[I] Engine built, {plan.nbytes / 1e6:.1f} MB")


def configure(builder: Any, network: Any, options: Options) -> Any:
    """Set what the arguments ask for; leave out what the wheel lacks libraries for: cuBLAS and cuDNN."""
    config = builder.create_builder_config()
    workspace = options.get("memPoolSize", "workspace:8192").removeprefix("workspace:")
    config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, int(workspace) << MIB)
    config.set_tactic_sources(
        1 << int(trt.TacticSource.EDGE_MASK_CONVOLUTIONS) | 1 << int(trt.TacticSource.JIT_CONVOLUTIONS)
    )
    if "builderOptimizationLevel" in options:
        config.builder_optimization_level = int(options["builderOptimizationLevel"])
    if "fp16" in options:
        config.set_flag(trt.BuilderFlag.FP16)
    if "noTF32" in options:
        config.clear_flag(trt.BuilderFlag.TF32)
    if options.get("precisionConstraints") == "obey":
        config.set_flag(trt.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)
    constrain(network, options)
    set_types(network, options)
    profile = builder.create_optimization_profile()
    ranges = [shapes(options[f"{word}Shapes"]) for word in ("min", "opt", "max")]
    for name in ranges[0]:
        profile.set_shape(name, *(one[name] for one in ranges))
    if config.add_optimization_profile(profile) < 0:
        raise Failure("the shape ranges are refused")
    return config


def constrain(network: Any, options: Options) -> None:
    """Fix the types of the named layers."""
    precisions = layer_types(options.get("layerPrecisions", ""))
    outputs = layer_types(options.get("layerOutputTypes", ""))
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.name in precisions:
            layer.precision = precisions[layer.name]
        for output in range(layer.num_outputs if layer.name in outputs else 0):
            layer.set_output_type(output, outputs[layer.name])


def layer_types(text: str) -> dict[str, Any]:
    """Read `layer.0/norm:fp32,...`."""
    pairs = (part.rsplit(":", 1) for part in text.split(",") if part)
    return {name: TYPES[kind] for name, kind in pairs}


def set_types(network: Any, options: Options) -> None:
    """Give inputs and outputs the types of the formats, which name them in the network's order."""
    for key, count, get in (
        ("inputIOFormats", network.num_inputs, network.get_input),
        ("outputIOFormats", network.num_outputs, network.get_output),
    ):
        kinds = [part.split(":")[0] for part in options.get(key, "").split(",") if part]
        for index in range(count):
            print(f"[I] {get(index).name} {get(index).dtype} {tuple(get(index).shape)}")
            if kinds:
                get(index).dtype = TYPES[kinds[index if len(kinds) > 1 else 0]]


def load(options: Options, driver: Driver) -> None:
    """Load a plan and run it on raw inputs."""
    plan = Plan(options["loadEngine"], driver)
    files = dict(part.split(":") for part in options["loadInputs"].split(","))
    arrays = {
        name: np.fromfile(files[name], plan.dtype(name)).reshape(shape)
        for name, shape in shapes(options["shapes"]).items()
    }
    outputs, times = plan.run(arrays, repeat=int(options.get("iterations", "10")))
    for name, array in outputs.items():
        print(f"[I] {name} {array.dtype} {list(array.shape)}")
    print(f"[I] median {np.median(times):.3f} ms on the GPU")


def main() -> int:
    """Do as trtexec does, the line of success included."""
    number = "".join(trt.__version__.split(".")[i].rjust(width, "0") for i, width in enumerate((1, 1, 2)))
    about = f"TensorRT.trtexec [TensorRT v{number}] # {' '.join(sys.argv)}"
    print(f"&&&& RUNNING {about}", flush=True)
    try:
        options = parse(sys.argv[1:])
        if "help" in options:
            return 0
        driver = Driver()  # first: without a GPU, a builder of TensorRT 8.6 ends the process
        if "loadEngine" in options:
            load(options, driver)
        else:
            build(options)
    except (Failure, PlanError, OSError) as exc:
        print(f"[E] {exc}\n&&&& FAILED {about}")
        return 1
    print(f"&&&& PASSED {about}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
