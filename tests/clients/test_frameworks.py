"""LangChain, LlamaIndex, LiteLLM and curl beyond their snippets, each in a process of its own.

They bring hundreds of modules and warnings of their own; in this process those would be other tests' trouble.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.clients.snippets import run
from tests.contract.caller import KEY, Caller
from tests.gateway_process import ROOT, GatewayProcess

LANGCHAIN_DEFAULT = """
import json
import openai
from langchain_openai import OpenAIEmbeddings

model = OpenAIEmbeddings(base_url="http://127.0.0.1:8080/v1", api_key="unused", model="all-MiniLM-L6-v2")
refusals = []
for documents in {documents!r}:
    try:
        model.embed_documents(documents)
    except openai.BadRequestError as error:
        refusals.append([error.code, error.message])
print(json.dumps(refusals))
"""
DOCUMENTS = [
    ["Vector stores keep embeddings beside the documents.", "How do I reset my password?"],
    ["def add(left: int, right: int) -> int:\n    return left + right\n"],
    ["如何更换花呗绑定银行卡? 这是一个很长的中文句子。"],
    [(ROOT / "docs" / "architecture.md").read_text()],
    ["longer than one request to OpenAI may be: " + (ROOT / "README.md").read_text() * 5],
]


def vocabulary() -> str:
    """Return the folder of the cl100k_base vocabulary that litellm ships, in tiktoken's own form."""
    package = find_spec("litellm")
    assert package is not None
    assert package.origin is not None
    return str(Path(package.origin).parent / "litellm_core_utils" / "tokenizers")


def test_langchains_default_is_refused_and_told_of_the_switch(gateway: GatewayProcess) -> None:
    code = LANGCHAIN_DEFAULT.format(documents=DOCUMENTS)
    refusals = json.loads(run("python", code, gateway.url, TIKTOKEN_CACHE_DIR=vocabulary()))
    assert [code for code, _ in refusals] == ["invalid_token_ids"] * len(DOCUMENTS)
    assert all("check_embedding_ctx_length=False" in message for _, message in refusals)


LANGCHAIN = """
from langchain_openai import OpenAIEmbeddings

model = OpenAIEmbeddings(
    base_url="http://127.0.0.1:8080/v1", api_key="unused", model="all-MiniLM-L6-v2",
    check_embedding_ctx_length=False, chunk_size=128,
)
print([len(vector) for vector in model.embed_documents([f"document {index}" for index in range(300)])])
"""


def test_langchain_with_the_switch(gateway: GatewayProcess) -> None:
    assert json.loads(run("python", LANGCHAIN, gateway.url)) == [384] * 300


LLAMA_INDEX = """
import asyncio, json
from llama_index.embeddings.openai_like import OpenAILikeEmbedding

model = OpenAILikeEmbedding(
    model_name="all-MiniLM-L6-v2", api_base="http://127.0.0.1:8080/v1", api_key="unused", embed_batch_size=256
)
texts = ["tree\\nriver", *(f"text {index}" for index in range(300))]
at_once = model.get_text_embedding_batch(texts)
later = asyncio.run(model.aget_text_embedding_batch(texts[:5]))
print(json.dumps([len(at_once), at_once[0], max(abs(a - b) for a, b in zip(at_once[3], later[3]))]))
"""


def test_llama_index(gateway: GatewayProcess, caller: Caller) -> None:
    count, vector, difference = json.loads(run("python", LLAMA_INDEX, gateway.url))
    assert count == 301
    assert vector == pytest.approx(caller.embed("tree\nriver")[0].tolist(), abs=1e-6)
    assert difference < 1e-5


LITELLM = """
import asyncio, json
import litellm

litellm.suppress_debug_info = True

def ask(key="the-right-key", **fields):
    return dict(
        model="openai/all-MiniLM-L6-v2", api_base="http://127.0.0.1:8080/v1", api_key=key, input=["tree"], **fields
    )

vectors = [
    litellm.embedding(**ask()).data[0]["embedding"],
    litellm.embedding(**ask(encoding_format=None)).data[0]["embedding"],
    litellm.embedding(**ask(encoding_format="float", dimensions=None)).data[0]["embedding"],
    asyncio.run(litellm.aembedding(**ask())).data[0]["embedding"],
]
try:
    litellm.embedding(**ask("wrong"))
except litellm.AuthenticationError as error:
    print(json.dumps([vectors, str(error)]))
"""


def test_litellm(keyed: Caller) -> None:
    vectors, message = json.loads(run("python", LITELLM, keyed.url))
    for vector in vectors:
        assert vector == pytest.approx(keyed.embed("tree")[0].tolist(), abs=1e-6)
    assert "The API key is not right." in message


def test_curl_with_a_long_body_and_with_chunks(keyed: Caller, tmp_path: Path) -> None:
    """Over a megabyte curl asks with `Expect: 100-continue` first."""
    body = tmp_path / "body.json"
    headers = f"-H 'content-type: application/json' -H 'authorization: Bearer {KEY}'"
    for length, more, status in ((900_000, "-H 'transfer-encoding: chunked'", 200), (1_100_000, "", 413)):
        body.write_text(json.dumps({"model": "all-MiniLM-L6-v2", "input": "tree", "user": "x" * length}))
        code = (
            f"curl -s -w '\\n%{{http_code}}' {headers} {more} --data-binary @{body} http://127.0.0.1:8080/v1/embeddings"
        )
        document, _, shown = run("sh", code, keyed.url).rpartition("\n")
        assert int(shown) == status
        assert ("data" in json.loads(document)) == (status == 200)
