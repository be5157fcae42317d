"""Every piece of code of docs/clients.md, run as it stands there."""

import json

import pytest

from tests.clients.snippets import DOCUMENTED_URL, Snippet, read_snippets, run
from tests.gateway_process import ROOT, GatewayProcess

SNIPPETS = read_snippets(ROOT / "docs" / "clients.md")


def test_every_client_has_its_snippet() -> None:
    titles = [snippet.title for snippet in SNIPPETS]
    assert titles == [
        "curl", "OpenAI for Python", "OpenAI for JavaScript", "LangChain", "LlamaIndex", "LiteLLM"
    ]  # fmt: skip


@pytest.mark.parametrize("snippet", SNIPPETS, ids=lambda snippet: snippet.title)
def test_it_runs_and_shows_what_it_says(gateway: GatewayProcess, snippet: Snippet) -> None:
    assert DOCUMENTED_URL in snippet.code
    assert len([line for line in snippet.code.splitlines() if line]) <= 5
    shown = run(snippet.language, snippet.code, gateway.url)
    if snippet.language == "sh":
        assert [len(row["embedding"]) for row in json.loads(shown)["data"]] == [384, 384]
    else:
        assert shown.splitlines() == snippet.shown
        assert shown
