"""Runs a TensorRT plan for another process, over its standard input and output. Started by engine_build.plan.

Self-contained: the Python that runs it needs tensorrt and numpy and nothing else, and may be another than the caller's
(TensorRT 8.6 has wheels up to Python 3.10). The CUDA driver is called by ctypes. Also a library: `Plan` is one
execution context with buffers of its own, for one thread at a time.

    python plan_process.py [PLAN]

Messages are one line of JSON, followed by the bytes of the arrays that it lists. First the process says what it found.
Then it answers each {"profile", "repeat", "arrays"} with {"gpu_ms", "arrays"} or {"error"}; `gpu_ms` has the time of
every repeated run by CUDA events, without copies.
"""

import ctypes
import json
import os
import sys
from typing import Any

import numpy as np
import tensorrt as trt

COMPUTE_MAJOR, COMPUTE_MINOR = 75, 76
"""Numbers of the driver's device attributes."""
DTYPES = {
    "FLOAT": np.float32,
    "HALF": np.float16,
    "INT32": np.int32,
    "INT64": np.int64,
    "INT8": np.int8,
    "BOOL": np.bool_,
}
"""TensorRT's names of types to numpy's; `tensorrt.nptype` of 8.6 fails with numpy 1.24 and later."""


class PlanError(Exception):
    """The plan cannot be loaded here, or not be run on what it was given."""


class Driver:
    """The few functions of the CUDA driver that are needed, on the first GPU.

    Raises:
        PlanError: no driver, no GPU, or a call failed.
    """

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as exc:
            raise PlanError(f"no usable GPU: {exc}") from exc
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._device, self._context = device, context
        self.bind()

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function and raise where it does not return 0."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise PlanError(f"{name} failed with CUDA error {code}")

    def bind(self) -> None:
        """Make the GPU's context that of the calling thread."""
        self.call("cuCtxSetCurrent", self._context)

    def describe(self) -> "dict[str, Any]":
        """Name, compute capability and memory of the GPU."""
        name, memory, number = ctypes.create_string_buffer(128), ctypes.c_size_t(), ctypes.c_int()
        self.call("cuDeviceGetName", name, 128, self._device)
        self.call("cuDeviceTotalMem_v2", ctypes.byref(memory), self._device)
        capability = []
        for attribute in (COMPUTE_MAJOR, COMPUTE_MINOR):
            self.call("cuDeviceGetAttribute", ctypes.byref(number), attribute, self._device)
            capability.append(str(number.value))
        return {"gpu": name.value.decode(), "compute_capability": ".".join(capability), "memory_bytes": memory.value}

    def new_stream(self) -> ctypes.c_void_p:
        """A stream that does not wait for the default one."""
        stream = ctypes.c_void_p()
        self.call("cuStreamCreate", ctypes.byref(stream), 1)
        return stream

    def new_event(self) -> ctypes.c_void_p:
        """An event to take times with."""
        event = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def elapsed_ms(self, start: ctypes.c_void_p, end: ctypes.c_void_p) -> float:
        """Milliseconds between two recorded events."""
        elapsed = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(elapsed), start, end)
        return elapsed.value


class Buffer:
    """Page-locked host memory and device memory of one size, which only ever grows."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._host, self._device, self._capacity = ctypes.c_void_p(), ctypes.c_uint64(), 0

    @property
    def address(self) -> int:
        """Where it is on the device."""
        return self._device.value

    def reserve(self, size: int) -> None:
        """Make room for `size` bytes; what it held is lost when it grows."""
        if size <= self._capacity:
            return
        if self._capacity:
            self._driver.call("cuMemFree_v2", self._device)
            self._driver.call("cuMemFreeHost", self._host)
        self._capacity = 1 << max(size - 1, 4095).bit_length()
        capacity = ctypes.c_size_t(self._capacity)
        self._driver.call("cuMemAlloc_v2", ctypes.byref(self._device), capacity)
        self._driver.call("cuMemHostAlloc", ctypes.byref(self._host), capacity, 0)

    def array(self, shape: "tuple[int, ...]", dtype: Any) -> Any:
        """The front of the host memory as an array; a view."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        return np.frombuffer((ctypes.c_ubyte * size).from_address(self._host.value), dtype).reshape(shape)

    def upload(self, size: int, stream: ctypes.c_void_p) -> None:
        """Copy the front to the device."""
        self._driver.call("cuMemcpyHtoDAsync_v2", self._device, self._host, ctypes.c_size_t(size), stream)

    def download(self, size: int, stream: ctypes.c_void_p) -> None:
        """Copy the front from the device."""
        self._driver.call("cuMemcpyDtoHAsync_v2", self._host, self._device, ctypes.c_size_t(size), stream)


class Plan:
    """A loaded plan.

    Raises:
        PlanError: no GPU, or the plan is not for this TensorRT and this GPU.
    """

    def __init__(self, path: str, driver: Driver) -> None:
        self.driver = driver
        logger = trt.Logger(trt.Logger.WARNING)
        trt.init_libnvinfer_plugins(logger, "")
        self._runtime = trt.Runtime(logger)
        with open(path, "rb") as file:
            self._engine = self._runtime.deserialize_cuda_engine(file.read())
        if self._engine is None:
            gpu = driver.describe()["gpu"]
            raise PlanError(
                f"the plan does not load with TensorRT {trt.__version__} on {gpu}: damaged, or built for another"
            )
        self._context = self._engine.create_execution_context()
        if self._context is None:
            raise PlanError("no execution context: GPU memory is short")
        driver.bind()
        self._stream, self._start, self._end = driver.new_stream(), driver.new_event(), driver.new_event()
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        self._is_input = {name: self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT for name in names}
        self._buffers = {name: Buffer(driver) for name in names}
        self._profile = 0

    def dtype(self, name: str) -> Any:
        """Numpy's type of a tensor."""
        kind = str(self._engine.get_tensor_dtype(name)).replace("DataType.", "")
        if kind not in DTYPES:
            raise PlanError(f"tensor {name} is {kind}, which numpy does not have")
        return np.dtype(DTYPES[kind])

    def describe(self) -> "dict[str, Any]":
        """Tensors and profiles."""
        inputs = [name for name, is_input in self._is_input.items() if is_input]
        profiles = [
            {
                name: [[int(size) for size in shape] for shape in self._engine.get_tensor_profile_shape(name, index)]
                for name in inputs
            }
            for index in range(self._engine.num_optimization_profiles)
        ]
        tensors = [
            {
                "name": name,
                "input": is_input,
                "dtype": str(self.dtype(name)),
                "shape": [int(size) for size in self._engine.get_tensor_shape(name)],
            }
            for name, is_input in self._is_input.items()
        ]
        return {"tensors": tensors, "profiles": profiles}

    def run(self, arrays: "dict[str, Any]", profile: int = 0, repeat: int = 0) -> "tuple[dict[str, Any], list[float]]":
        """Run once, then `repeat` times more with a clock.

        Returns:
            The outputs, as views that the next run overwrites, and the milliseconds of every repeated run.

        Raises:
            PlanError: a shape lies outside of the profile, or TensorRT failed.
        """
        self.driver.bind()
        self._choose(profile)
        for name, array in arrays.items():
            if not self._context.set_input_shape(name, array.shape):
                raise PlanError(f"{name} {list(array.shape)} is outside of profile {profile}")
            self._place(name, array.shape)[...] = array
            self._buffers[name].upload(array.nbytes, self._stream)
        outputs = {}
        for name, is_input in self._is_input.items():
            if not is_input:
                outputs[name] = self._place(name, tuple(self._context.get_tensor_shape(name)))
        times = [self._execute() for _ in range(repeat + 1)][1:]
        for name, array in outputs.items():
            self._buffers[name].download(array.nbytes, self._stream)
        self.driver.call("cuStreamSynchronize", self._stream)
        return outputs, times

    def _choose(self, profile: int) -> None:
        if profile != self._profile:
            self._context.set_optimization_profile_async(profile, self._stream.value)
            self.driver.call("cuStreamSynchronize", self._stream)
            self._profile = profile

    def _place(self, name: str, shape: "tuple[int, ...]") -> Any:
        buffer, dtype = self._buffers[name], self.dtype(name)
        buffer.reserve(int(np.prod(shape)) * dtype.itemsize)
        self._context.set_tensor_address(name, buffer.address)
        return buffer.array(tuple(shape), dtype)

    def _execute(self) -> float:
        self.driver.call("cuEventRecord", self._start, self._stream)
        if not self._context.execute_async_v3(self._stream.value):
            raise PlanError("TensorRT failed to run; its own message is above")
        self.driver.call("cuEventRecord", self._end, self._stream)
        self.driver.call("cuStreamSynchronize", self._stream)
        return self.driver.elapsed_ms(self._start, self._end)


def send(file: Any, message: "dict[str, Any]", arrays: "dict[str, Any]") -> None:
    """Write a message with its tensors."""
    listed = [{"name": name, "dtype": str(a.dtype), "shape": list(a.shape)} for name, a in arrays.items()]
    file.write(json.dumps({**message, "arrays": listed}).encode() + b"\n")
    for array in arrays.values():
        file.write(np.ascontiguousarray(array).data.cast("B"))
    file.flush()


def receive(file: Any) -> "tuple[dict[str, Any], dict[str, Any]] | None":
    """Read a message with its tensors; None at the end."""
    line = file.readline()
    if not line:
        return None
    message = json.loads(line)
    arrays = {}
    for listed in message["arrays"]:
        dtype, shape = np.dtype(listed["dtype"]), tuple(listed["shape"])
        arrays[listed["name"]] = np.frombuffer(file.read(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
    return message, arrays


def main() -> int:
    """Serve one plan, or only describe the machine, until the input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # TensorRT prints to standard output, which is ours
    try:
        driver = Driver()  # first: without a GPU, a runtime of TensorRT 8.6 ends the process
        plan = Plan(sys.argv[1], driver) if len(sys.argv) > 1 else None
        found = {"tensorrt": trt.__version__, **driver.describe(), **(plan.describe() if plan else {})}
    except (PlanError, OSError) as exc:
        send(answers, {"error": str(exc)}, {})
        return 1
    send(answers, found, {})
    while plan and (request := receive(sys.stdin.buffer)):
        message, arrays = request
        try:
            outputs, times = plan.run(arrays, message["profile"], message["repeat"])
            send(answers, {"gpu_ms": times}, outputs)
        except PlanError as exc:
            send(answers, {"error": str(exc)}, {})
    return 0


if __name__ == "__main__":
    sys.exit(main())
