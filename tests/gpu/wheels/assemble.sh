#!/usr/bin/env bash
# Makes a tree with TensorRT 8.6 and Triton 2.51 out of wheels, for a GPU machine that has neither them nor a network.
#
#   tests/gpu/wheels/assemble.sh FOLDER [PIECE_SIZE]
#
# Result: FOLDER/tree, and FOLDER/pieces/tree.tar.xz.NNN of PIECE_SIZE each (default 60MiB; about 490 MB in all). On the
# GPU machine: cat tree.tar.xz.* | tar -xJf - -C /tmp, then run.sh with TENSORRT_PYTHON=/tmp/tree/python and
# TRITON=/tmp/tree/triton.sh. Needs x86-64 Linux with gcc, binutils, xz and pip, 5 GiB, and in PYTHON310 a Python 3.10
# with a shared library (its C library no newer than the GPU machine's). NVIDIA's wheels come under NVIDIA's licences:
# the result is for machines of your own.
set -Eeuo pipefail
here="$(cd "$(dirname "$(readlink -f "$0")")" && pwd)"
mkdir -p "$1"
out="$(cd "$1" && pwd)" size="${2:-60MiB}"
python310="${PYTHON310:-$(command -v python3.10 || true)}"
tree="$out/tree" wheels="$out/wheels"
library="$("$python310" -c 'import sysconfig as s; print(s.get_config_var("LIBDIR") + "/" + s.get_config_var("INSTSONAME"))')"
case "$library" in
  *.so*) ;;
  *) echo "assemble.sh: $python310 has no shared library: build it with --enable-shared" >&2; exit 1 ;;
esac

python3 -m pip download --quiet --no-deps --require-hashes --only-binary=:all: --dest "$wheels" --python-version 3.10 \
  --implementation cp --abi cp310 --abi none --platform manylinux_2_35_x86_64 --platform manylinux_2_17_x86_64 \
  --platform manylinux2014_x86_64 --requirement "$here/requirements.txt"
rm -rf "$tree"
site="$tree/python310/lib/python3.10/site-packages" server="$tree/pytriton/tritonserver"
mkdir -p "$site" "$tree/python310/bin"

# Python: interpreter, standard library, and what its extension modules are linked with.
stdlib="$("$python310" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
tar -C "$stdlib" --exclude=__pycache__ --exclude=./site-packages --exclude=./dist-packages --exclude=./test \
  --exclude='./config-3.10*' --exclude=./idlelib --exclude=./tkinter --exclude=./ensurepip -cf - . |
  tar -C "$tree/python310/lib/python3.10" -xf -
cp -L "$python310" "$tree/python310/bin/python3.10"
ln -s python3.10 "$tree/python310/bin/python3"
cp -L "$library" "$tree/python310/lib/"
(ldd "$python310" "$tree/python310/lib/python3.10/lib-dynload/"*.so 2> /dev/null || true) |
  awk '$2 == "=>" && $3 ~ /^\// && $1 !~ /^(libc|libm|libpthread|libdl|librt|libutil|libstdc\+\+|libgcc_s|libpython3.*)\.so/ {print $3}' |
  sort -u | xargs -r cp -L -t "$tree/python310/lib"

# The wheels; of pytriton only the server.
for name in numpy tensorrt; do python3 -m zipfile -e "$wheels/$name"-*.whl "$site"; done
python3 -m zipfile -e "$wheels"/nvidia_pytriton-*.whl "$out/unpacked"
mkdir -p "$server"
mv "$out/unpacked/nvidia_pytriton.libs" "$tree/"
mv "$out/unpacked/pytriton/tritonserver"/{bin,backends} "$server/"
mv "$out/unpacked/pytriton/tritonserver/python_backend_stubs/3.10/triton_python_backend_stub" "$server/backends/python/"
rm -rf "$out/unpacked"
chmod +x "$server/bin/tritonserver" "$server/backends/python/triton_python_backend_stub"
python3 "$here/link_stubs.py" "$tree/stubs" "$site"/tensorrt/*.so*
cp "$here/environment.sh" "$here/python" "$here/triton.sh" "$tree/"

env -i PATH=/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 "$tree/python" -c 'import numpy, ssl, tensorrt; print("TensorRT", tensorrt.__version__)'
mkdir -p "$out/pieces"
rm -f "$out/pieces"/tree.tar.xz.*
# Level 0 with a large dictionary: the builder holds the same kernels for many GPUs.
tar -C "$out" --sort=name --owner=0 --group=0 --numeric-owner -cf - tree |
  xz -T2 --block-size=256MiB --lzma2=preset=0,dict=128MiB -c | split -b "$size" -d -a 3 - "$out/pieces/tree.tar.xz."
du -sh "$out/pieces"
