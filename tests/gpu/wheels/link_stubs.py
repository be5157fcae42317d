"""Makes libraries that stand in for cuBLAS and cuDNN: TensorRT's plugins are linked with them, BERT never uses them.

    python3 link_stubs.py FOLDER LIBRARY.so ...

Every function that the given libraries name is there. The ones that open cuBLAS or cuDNN return an error; the others
print their name and end the process, so that a use of them cannot go unnoticed.
"""

import re
import subprocess
import sys
from pathlib import Path

OPENING = {"libcublas.so.12": "cublasCreate_v2", "libcublasLt.so.12": "cublasLtCreate", "libcudnn.so.8": "cudnnCreate"}
"""The libraries, and the function of each that opens it."""
SOURCE = """#include <stdio.h>
#include <stdlib.h>
static int refuse(const char *name) { fprintf(stderr, "%s is a stub: no such library here\\n", name); return 1; }
static void stop(const char *name) { refuse(name); abort(); }
"""


def wanted(libraries: list[str]) -> dict[str, set[str]]:
    """Undefined functions by the library that their version names."""
    command = ["nm", "--dynamic", "--undefined-only", *libraries]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, set[str]] = {library: set() for library in OPENING}
    for symbol, library in re.findall(r"^\s+U (\w+)@(\S+)$", listing, re.MULTILINE):
        if library in found:
            found[library].add(symbol)
    return found


def compile_stub(folder: Path, library: str, symbols: set[str]) -> None:
    """Compile one library; each symbol has the version that the linker looks for."""
    functions = [
        f'int {symbol}(void) {{ return refuse("{symbol}"); }}'
        if symbol == OPENING[library]
        else f'void {symbol}(void) {{ stop("{symbol}"); }}'
        for symbol in sorted(symbols)
    ]
    source, versions = folder / "stub.c", folder / "stub.map"
    source.write_text(SOURCE + "\n".join(functions) + "\n")
    versions.write_text(f"{library} {{ global: {'; '.join(sorted(symbols))}; local: *; }};\n")
    flags = ["-shared", "-fPIC", f"-Wl,-soname,{library}", f"-Wl,--version-script,{versions}"]
    subprocess.run(["gcc", *flags, "-o", str(folder / library), str(source)], check=True)
    source.unlink()
    versions.unlink()


def main(folder: Path, libraries: list[str]) -> None:
    """Make all three."""
    folder.mkdir(parents=True)
    for library, symbols in wanted(libraries).items():
        compile_stub(folder, library, symbols)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
