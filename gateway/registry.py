"""The served models by public name. Built by app, asked by routes."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Event

from gateway.embedder import Embedder
from gateway.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model as callers see it.

    Attributes:
        id: its public name; may contain slashes.
        embedder: answers its requests.
        created: Unix time of its engine's manifest, seconds.
        precision: what its engine computes in, as the manifest says.
    """

    id: str
    embedder: Embedder
    created: int
    precision: str


class Registry:
    """Looks models up by name or alias.

    Args:
        models: the served models, ids distinct.
        aliases: other names to ids.
        stopping: set when the gateway begins to stop; None where nothing stops it.
    """

    def __init__(
        self, models: Iterable[ServedModel], aliases: Mapping[str, str], stopping: Event | None = None
    ) -> None:
        self._stopping = stopping
        self._models = {model.id: model for model in models}
        self._names = {**{alias: self._models[id_] for alias, id_ in aliases.items()}, **self._models}

    @property
    def is_stopping(self) -> bool:
        """Whether new requests should go to another gateway; those that come are answered all the same."""
        return self._stopping is not None and self._stopping.is_set()

    def __iter__(self) -> Iterator[ServedModel]:
        """Iterate over the served models."""
        return iter(self._models.values())

    def resolve(self, name: str) -> ServedModel:
        """Return the model of that name or alias.

        Raises:
            ModelNotFound: nothing of that name is served; the message lists what is.
        """
        try:
            return self._names[name]
        except KeyError:
            served = ", ".join(self._models)
            raise ModelNotFound(f"No such model. Served here: {served}.", param="model") from None
