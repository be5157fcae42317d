"""Command lines by TensorRT's version: no option that a version lacks, and all that it needs."""

from typing import Any

import pytest

from engine_build.engine_recipe import EngineRecipe, Profile
from engine_build.errors import EngineError
from engine_build.precision import FloatType, GraphForm, Precision
from engine_build.tensorrt_version import TensorRTVersion, parse_version, read_banner
from engine_build.trtexec_arguments import build_arguments, load_arguments

V8, V10, V11 = TensorRTVersion(8, 6, 1), TensorRTVersion(10, 13, 2), TensorRTVersion(11, 2, 1)
VERSIONS = pytest.mark.parametrize("version", [V8, V10, V11], ids=str)
WIDE = Profile.parse("1x1:64x128:64x512")
SHORT, LONG = Profile.parse("1x1:64x64:64x128"), Profile.parse("1x129:16x384:64x512")
# What a version does not know, or must not be given: it ends with an error, or ignores it silently.
LACKS = {
    8: {"--stronglyTyped", "--bf16", "--profile", "--useProfile", "--timingCacheFile", "--buildOnly", "--workspace"},
    10: {"--workspace", "--buildOnly", "--fp16", "--bf16", "--int8", "--best", "--layerPrecisions"},
    11: {"--workspace", "--buildOnly", "--fp16", "--bf16", "--int8", "--best", "--stronglyTyped", "--layerPrecisions",
         "--precisionConstraints", "--layerOutputTypes"},
}  # fmt: skip


def names(arguments: list[str]) -> set[str]:
    return {argument.split("=")[0] for argument in arguments}


def build(version: TensorRTVersion, precision: Precision = Precision.FP16, **changes: Any) -> list[str]:
    recipe = EngineRecipe(**({"profiles": (WIDE,)} | changes))
    return build_arguments(recipe, GraphForm(precision), version, "x.plan", ["layer.0/norm", "layer.1/norm"])


@VERSIONS
@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("profiles", [(WIDE,), (SHORT, LONG)], ids=["one", "two"])
def test_no_version_gets_what_it_lacks(
    version: TensorRTVersion, precision: Precision, profiles: tuple[Profile, ...]
) -> None:
    if version is V8 and (precision is Precision.BF16 or len(profiles) > 1):
        with pytest.raises(EngineError, match=r"has no BF16|builds one profile"):
            build(version, precision, profiles=profiles)
        return
    arguments = build(version, precision, profiles=profiles, builder_level=4)
    given = names(arguments) | names(load_arguments(version, "x.plan", (4, 8), {"input_ids": "i"}, len(profiles) - 1))
    assert not given & LACKS[version.major]
    assert {"--onnx", "--saveEngine", "--skipInference", "--memPoolSize", "--builderOptimizationLevel"} <= given


@pytest.mark.parametrize(
    ("version", "precision", "flags"),
    [
        (V8, "fp32", {"--noTF32", "--inputIOFormats", "--outputIOFormats"}),
        (V8, "fp16", {"--fp16", "--inputIOFormats", "--outputIOFormats"}),
        (V8, "mixed", {"--fp16", "--inputIOFormats", "--outputIOFormats", "--precisionConstraints",
                       "--layerPrecisions", "--layerOutputTypes"}),
        (V10, "fp32", {"--stronglyTyped", "--noTF32", "--timingCacheFile"}),
        (V10, "fp16", {"--stronglyTyped", "--timingCacheFile"}),
        (V10, "bf16", {"--stronglyTyped", "--timingCacheFile"}),
        (V10, "mixed", {"--stronglyTyped", "--timingCacheFile"}),
        (V11, "fp32", {"--noTF32", "--timingCacheFile"}),
        (V11, "fp16", {"--timingCacheFile"}),
        (V11, "mixed", {"--timingCacheFile"}),
    ],
)  # fmt: skip
def test_precision(version: TensorRTVersion, precision: str, flags: set[str]) -> None:
    shapes = {"--minShapes", "--optShapes", "--maxShapes"}
    common = shapes | {"--onnx", "--saveEngine", "--skipInference", "--memPoolSize"}

    assert names(build(version, Precision(precision))) == common | flags


@VERSIONS
def test_both_inputs_have_shapes_and_workspace_is_in_mib_without_a_unit(version: TensorRTVersion) -> None:
    arguments = build(version, workspace_mib=4096)

    assert "--minShapes=input_ids:1x1,attention_mask:1x1" in arguments
    assert "--optShapes=input_ids:64x128,attention_mask:64x128" in arguments
    assert "--maxShapes=input_ids:64x512,attention_mask:64x512" in arguments
    assert "--memPoolSize=workspace:4096" in arguments


def test_each_profile_is_followed_by_its_shapes() -> None:
    arguments = build(V10, profiles=(SHORT, LONG))

    start = arguments.index("--profile=0")
    assert arguments[start : start + 8] == [
        "--profile=0",
        "--minShapes=input_ids:1x1,attention_mask:1x1",
        "--optShapes=input_ids:64x64,attention_mask:64x64",
        "--maxShapes=input_ids:64x128,attention_mask:64x128",
        "--profile=1",
        "--minShapes=input_ids:1x129,attention_mask:1x129",
        "--optShapes=input_ids:16x384,attention_mask:16x384",
        "--maxShapes=input_ids:64x512,attention_mask:64x512",
    ]


def test_islands_are_named_to_a_version_without_strong_typing() -> None:
    arguments = build(V8, Precision.MIXED)

    assert "--layerPrecisions=layer.0/norm:fp32,layer.1/norm:fp32" in arguments
    assert "--layerOutputTypes=layer.0/norm:fp32,layer.1/norm:fp32" in arguments
    assert "--precisionConstraints=obey" in arguments


def test_half_output_of_8() -> None:
    for precision in (Precision.FP32, Precision.FP16):
        form = GraphForm(precision, FloatType.FP16)
        arguments = build_arguments(EngineRecipe((WIDE,)), form, V8, "x.plan")
        assert "--outputIOFormats=fp16:chw" in arguments
        assert "--fp16" in arguments


@pytest.mark.parametrize("version", [V8, V10, V11], ids=str)
def test_a_plan_is_run_on_files(version: TensorRTVersion) -> None:
    files = {"input_ids": "ids.raw", "attention_mask": "mask.raw"}
    arguments = load_arguments(version, "x.plan", (64, 128), files)

    assert arguments[:3] == [
        "--loadEngine=x.plan",
        "--shapes=input_ids:64x128,attention_mask:64x128",
        "--loadInputs=input_ids:ids.raw,attention_mask:mask.raw",
    ]


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v8600] # trtexec --help", "8.6.0"),
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # trtexec --help", "8.6.1"),
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v100600] [b26] # trtexec --help", "10.6.0"),
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v101303] [b9] # trtexec --help", "10.13.3"),
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v110201] [b3] # trtexec --help", "11.2.1"),
        ("&&&& RUNNING TensorRT.trtexec [TensorRT v11.1.0.106] [b48] # trtexec", "11.1.0"),
    ],
)
def test_banner(printed: str, version: str) -> None:
    assert str(read_banner(f"{printed}\n=== Model Options ===")) == version


@pytest.mark.parametrize(
    ("printed", "message"),
    [
        ("command not known", "does not tell its version; it printed: 'command not known'"),
        ("[TensorRT v8503]", "TensorRT 8.5.3 is not supported"),
        ("[TensorRT v7202]", "TensorRT 7.2.2 is not supported"),
    ],
)
def test_unsupported_banner(printed: str, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        read_banner(printed)


def test_versions_of_the_package() -> None:
    assert parse_version("10.13.2.6") == V10
    assert parse_version("8.6") == TensorRTVersion(8, 6, 0)
    with pytest.raises(EngineError, match="is no version"):
        parse_version("none")
