"""Copies model directories of plans, with Triton's Python backend in place of its TensorRT backend.

    python python_backend_repository.py REPOSITORY COPY [MODEL ...]

Only `platform` changes in config.pbtxt, and the program that runs the plan is added beside it.
"""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
PROCESS = HERE.parents[1] / "engine_build" / "templates" / "plan_process.py"


def copy_model(source: Path, target: Path) -> None:
    """Copy one directory."""
    shutil.copytree(source, target)
    config = target / "config.pbtxt"
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace('platform: "tensorrt_plan"', 'backend: "python"'), encoding="utf-8")
    shutil.copyfile(HERE / "python_backend_model.py", target / "1" / "model.py")
    shutil.copyfile(PROCESS, target / "1" / PROCESS.name)


if __name__ == "__main__":
    for name in sys.argv[3:]:
        copy_model(Path(sys.argv[1], name), Path(sys.argv[2], name))
