#!/usr/bin/env bash
# Downloads infinity-emb 0.0.78 and what a Python 3.12 with torch, numpy, scikit-learn and Pillow lacks for it; 21 MB.
#
#   tests/gpu/infinity_wheels.sh FOLDER
#
# For bench.sh, which installs them beside that Python's own packages. Its own numpy stays, though infinity asks for
# one below 2: it does not need it.
set -Eeuo pipefail
here="$(cd "$(dirname "$(readlink -f "$0")")" && pwd)"
python3 -m pip download --quiet --no-deps --require-hashes --only-binary=:all: --dest "$1" --python-version 3.12 \
  --implementation cp --abi cp312 --abi abi3 --abi none --platform manylinux_2_28_x86_64 \
  --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --requirement "$here/infinity_wheels.txt"
