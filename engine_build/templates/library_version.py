"""Prints the version of the TensorRT library that the loader finds, as its own number. Run by Dockerfile.triton.

    python3 library_version.py [FILE]

With a file, the number must be the one in it: a plan built by one version does not load in another. Self-contained;
no GPU is needed.
"""

import ctypes
import ctypes.util
import glob
import sys

FOLDERS = ("/usr/lib/*-linux-gnu", "/opt/tensorrt/lib", "/usr/local/tensorrt/lib")


def library() -> str:
    """Name or path of libnvinfer."""
    paths = [path for folder in FOLDERS for path in sorted(glob.glob(f"{folder}/libnvinfer.so.*"))]
    found = ctypes.util.find_library("nvinfer") or next(iter(paths), None)
    if found is None:
        sys.exit("no libnvinfer in this image")
    return found


def main() -> None:
    """Print, and compare."""
    loaded = ctypes.CDLL(library())
    loaded.getInferLibVersion.restype = ctypes.c_int32
    number = str(loaded.getInferLibVersion())
    sys.stdout.write(f"{number}\n")
    if len(sys.argv) > 1:
        with open(sys.argv[1]) as file:
            built = file.read().strip()
        if built != number:
            sys.exit(f"the builder's TensorRT is {built}, the server's {number}: their plans do not fit")


if __name__ == "__main__":
    main()
