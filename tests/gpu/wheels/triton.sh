#!/usr/bin/env bash
# Becomes tritonserver 2.51 on a model repository, with its Python backend, on the loopback interface only.
#
#   triton.sh REPOSITORY [OPTION ...]
#
# The Python backend keeps tensors in /dev/shm: a [64,512,768] float32 output needs 96 MiB for each instance.
set -euo pipefail
repository="$(cd "$1" && pwd)"
shift
. "$(dirname "$(readlink -f "$0")")/environment.sh"
server="$TREE/pytriton/tritonserver"
exec "$server/bin/tritonserver" --model-repository="$repository" --backend-directory="$server/backends" \
  --http-address=127.0.0.1 --grpc-address=127.0.0.1 --metrics-address=127.0.0.1 --allow-gpu-metrics=false \
  --disable-auto-complete-config "$@"
