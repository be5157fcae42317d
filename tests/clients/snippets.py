"""Runs code as a user would: each piece in a process of its own, against a given gateway."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.gateway_process import ROOT

JAVASCRIPT = Path(__file__).parent / "javascript"
DOCUMENTED_URL = "http://127.0.0.1:8080"
_COMMANDS = {
    "python": [sys.executable, "-c"],
    "javascript": ["node", "--input-type=module", "--eval"],
    "sh": ["bash", "-euo", "pipefail", "-c"],
}
_BLOCK = re.compile(r"^## (?P<title>[^\n]+)\n|^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"^(?:print|console\.log)\(.*\);? +(?:#|//) (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """A piece of code of a page.

    Attributes:
        title: the heading above it.
        language: as its fence says.
    """

    title: str
    language: str
    code: str

    @property
    def shown(self) -> list[str]:
        """What its comments say that it prints."""
        return _SHOWN.findall(self.code)


def read_snippets(page: Path) -> list[Snippet]:
    """Return all pieces of code of a page."""
    title = ""
    snippets = []
    for match in _BLOCK.finditer(page.read_text()):
        title = match["title"] or title
        if match["language"]:
            snippets.append(Snippet(title, match["language"], match["code"]))
    return snippets


def run(language: str, code: str, url: str, **environment: str) -> str:
    """Run code that names the documented address; return what it prints. Nothing outside this machine is asked."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "LANGSMITH_"))},
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LANGSMITH_TRACING": "false",
        "PYTHONWARNINGS": "ignore",
        **environment,
    }
    ended = subprocess.run(
        [*_COMMANDS[language], code.replace(DOCUMENTED_URL, url)],
        cwd=JAVASCRIPT if language == "javascript" else ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()
