from typing import cast

import pytest

from gateway.embedder import Embedder
from gateway.errors import ModelNotFound
from gateway.registry import Registry, ServedModel

MODELS = [ServedModel(id_, cast(Embedder, None), 0, "fp32") for id_ in ("org/first", "second")]
REGISTRY = Registry(MODELS, {"text-embedding-ada-002": "org/first"})


def test_by_name_and_alias() -> None:
    assert REGISTRY.resolve("org/first") is MODELS[0]
    assert REGISTRY.resolve("text-embedding-ada-002") is MODELS[0]
    assert list(REGISTRY) == MODELS


@pytest.mark.parametrize("name", ["First", "", "../second", "x" * 10_000])
def test_unknown_names_what_is_served_and_not_what_was_asked(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        REGISTRY.resolve(name)
    assert str(caught.value) == "No such model. Served here: org/first, second."
    assert caught.value.param == "model"
