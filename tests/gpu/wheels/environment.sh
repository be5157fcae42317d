# shellcheck shell=bash
# Sourced by python and triton.sh: what TensorRT, Triton and Python 3.10 of this tree need. TREE is the tree.
# For those two alone: with PYTHONHOME set, every other Python of the machine breaks.
TREE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
folders="$TREE/nvidia_pytriton.libs:$TREE/python310/lib/python3.10/site-packages/tensorrt:$TREE/stubs:$TREE/python310/lib"
# Where container images put the driver's libraries when the loader's cache does not know them.
for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
  [ -e "$folder/libcuda.so.1" ] && folders="$folders:$folder"
done
export LD_LIBRARY_PATH="$folders${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
# First on PATH: Triton's Python backend takes its packages from the first python3 that it finds there.
export PATH="$TREE/python310/bin:$PATH" PYTHONHOME="$TREE/python310" PYTHONNOUSERSITE=1 CUDA_MODULE_LOADING=LAZY
unset PYTHONPATH folder folders
