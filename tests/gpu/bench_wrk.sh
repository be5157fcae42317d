#!/usr/bin/env bash
# Copies wrk with its libraries into a folder, for a machine that has none and whose C library is not older.
#
#   tests/gpu/bench_wrk.sh FOLDER
set -Eeuo pipefail
mkdir -p "$1"
cp -L "$(command -v wrk)" "$1/wrk.bin"
ldd "$1/wrk.bin" | awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libpthread|libdl)\.so/ {print $3}' | xargs cp -L -t "$1"
cat > "$1/wrk" << 'WRAPPER'
#!/bin/sh
here="$(dirname "$(readlink -f "$0")")"
LD_LIBRARY_PATH="$here" exec "$here/wrk.bin" "$@"
WRAPPER
chmod +x "$1/wrk"
