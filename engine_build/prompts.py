"""Reads the texts that a model wants before each input. Called by model_folder; pure but for the file."""

from pathlib import Path

from engine_build.errors import ModelFolderError
from engine_build.json_file import read_optional_json_dict

PROMPTS_FILE = "config_sentence_transformers.json"

DOCUMENT_WORDS = ("document", "passage")
"""Two words for one thing; a folder that knows one of them is served under both."""


def read_prompts(folder: Path) -> dict[str, str]:
    """Input type to prompt, under the folder's own names; empty prompts are kept, null ones are not.

    Raises:
        ModelFolderError: a prompt is no text.
    """
    path = folder / PROMPTS_FILE
    prompts = read_optional_json_dict(path).get("prompts") or {}
    if not isinstance(prompts, dict) or any(not isinstance(text, str | None) for text in prompts.values()):
        raise ModelFolderError(f"{path}: `prompts` is not an object of texts")
    return {name: text for name, text in prompts.items() if text is not None}


def with_document_words(prompts: dict[str, str]) -> dict[str, str]:
    """Add the missing one of `document` and `passage` where the other is there. Returns a new dict."""
    known = [prompts[word] for word in DOCUMENT_WORDS if word in prompts]
    if len(known) != 1:
        return dict(prompts)
    return prompts | dict.fromkeys(DOCUMENT_WORDS, known[0])
