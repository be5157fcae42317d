"""Copies model directories whose engine is taken out, so that Triton answers at once. Called by __main__."""

import json
import re
import shutil
from pathlib import Path

SUFFIX = "-constant"
"""Ends the name of the copy."""
_MODEL = Path(__file__).with_name("constant_model.py")
_KEPT = ("config.pbtxt", "manifest.json", "tokenizer.json")


def add_constant_model(repository: Path, name: str) -> None:
    """Put the copy of a model directory beside it; the gateway accepts it, as its manifest has the constant vectors."""
    source, copy = repository / name, repository / f"{name}{SUFFIX}"
    (copy / "1").mkdir(parents=True)
    for file in _KEPT:
        shutil.copyfile(source / file, copy / file)
    if (source / "warmup").is_dir():
        shutil.copytree(source / "warmup", copy / "warmup")
    shutil.copyfile(_MODEL, copy / "1" / "model.py")
    config = (copy / "config.pbtxt").read_text(encoding="utf-8")
    config = config.replace(f'name: "{name}"', f'name: "{copy.name}"')
    config = re.sub(r'^(backend: "\w+"|platform: "\w+")$', 'backend: "python"', config, flags=re.MULTILINE)
    (copy / "config.pbtxt").write_text(config, encoding="utf-8")
    manifest = json.loads((copy / "manifest.json").read_bytes())
    check = manifest["self_check"]
    hidden_size = len(check["embeddings"][0])
    check["embeddings"] = [[hidden_size**-0.5] * hidden_size] * len(check["texts"])
    manifest.pop("engine", None)  # there is no plan that could be foreign
    (copy / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
