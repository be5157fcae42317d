"""Opens the served models, checks them, and closes them again. Called by app at start and stop."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from threading import Event
from typing import TYPE_CHECKING

from threadpoolctl import threadpool_limits

from gateway.embedder import Embedder, Limits
from gateway.engine_match import explained
from gateway.errors import StartupError
from gateway.metrics import Metrics
from gateway.model_directory import ModelDirectory, find_models, read_model_directory
from gateway.registry import Registry, ServedModel
from gateway.replicas import Replicas, open_replicas
from gateway.scheduler import Scheduler
from gateway.self_check import SelfCheck
from gateway.settings import Settings
from gateway.shared_memory import SharedMemory, SharedMemoryOptions
from gateway.token_ids import TokenIds
from gateway.tokenizer import Tokenizer
from gateway.triton import TritonEngine, open_triton_engine, read_model_spec
from gateway.triton_url import parse_triton_url
from gateway.types import Truncate
from gateway.watch import ModelWatch

if TYPE_CHECKING:
    from gateway.tracing import Tracing

_POOLING_THREADS = 2
_ANSWER_TIMEOUT_S = 1.0
"""How long one of several endpoints may keep the start of the others waiting."""


@asynccontextmanager
async def open_registry(
    settings: Settings, metrics: Metrics, stopping: Event, tracing: "Tracing | None" = None
) -> AsyncIterator[Registry]:
    """Open every model that the settings name; on leaving the block, close them.

    `stopping` is set from outside when the gateway begins to stop. Local files are checked before Triton is waited for.
    A model that fails its self-check is served as not ready.

    Raises:
        StartupError: a model directory, Triton or the two together are not as they must be.
    """
    repository = settings.model_repository
    names = settings.models or find_models(repository)
    directories = [read_model_directory(repository, name) for name in names]
    _check_named("GATEWAY_MODEL_ALIASES", settings.model_aliases.values(), names)
    _check_named("GATEWAY_UNNORMALIZED_MODELS", settings.unnormalized_models, names)
    async with AsyncExitStack() as stack:
        # A row's matrix product is too small to share: the BLAS library's threads took more CPU time by waiting for it.
        stack.enter_context(threadpool_limits(1, user_api="blas"))
        models = [
            await stack.enter_async_context(_open_model(directory, settings, metrics, tracing))
            for directory in directories
        ]
        yield Registry(models, settings.model_aliases, stopping)


def served_names(settings: Settings) -> list[str]:
    """Return the public names of the models that will be served."""
    return list(settings.models or find_models(settings.model_repository))


def _check_named(variable: str, models: Iterable[str], served: Sequence[str]) -> None:
    for model in models:
        if model not in served:
            raise StartupError(f"{variable} names {model!r}, which is not served; served: {', '.join(served)}")


@asynccontextmanager
async def _open_model(
    directory: ModelDirectory, settings: Settings, metrics: Metrics, tracing: "Tracing | None"
) -> AsyncIterator[ServedModel]:
    async with AsyncExitStack() as stack:
        engine = await _open_engine(directory, settings, metrics)
        stack.push_async_callback(engine.close)
        spec = engine.spec
        instance_slots = spec.instances * settings.slots_per_instance
        tokenizer_threads = stack.enter_context(ThreadPoolExecutor(settings.tokenizer_threads + 1, "tokenizer"))
        pooling_threads = stack.enter_context(ThreadPoolExecutor(_POOLING_THREADS, "pooling"))
        tokenizer = Tokenizer(
            directory.tokenizer,
            max_sequence_length=spec.max_sequence_length,
            vocab_size=spec.vocab_size,
            max_input_chars=settings.max_input_chars,
            token_ids=TokenIds(settings.token_ids),
            executor=tokenizer_threads,
            long_chunks=settings.tokenizer_threads,
        )
        scheduler = Scheduler(
            engine,
            slots=instance_slots,
            max_batch_tokens=settings.max_batch_tokens,
            max_delay_s=settings.max_batch_delay_ms / 1000,
            executor=pooling_threads,
            metrics=metrics,
            model=directory.name,
            tracing=tracing,
        )
        stack.push_async_callback(scheduler.close)
        embedder = Embedder(
            directory.name,
            engine=engine,
            tokenizer=tokenizer,
            scheduler=scheduler,
            limits=Limits(
                settings.max_request_tokens,
                settings.max_queued_inputs,
                settings.max_queued_tokens,
                settings.max_queue_s,
            ),
            normalized=directory.name not in settings.unnormalized_models,
            metrics=metrics,
        )
        if isinstance(engine, Replicas):
            encodings = await tokenizer.encode(directory.check_texts, truncate=Truncate.END)
            await engine.start(
                SelfCheck(encodings, directory.check_embeddings),
                lambda endpoints: scheduler.resize(instance_slots * max(endpoints, 1)),
            )
        watch = ModelWatch(embedder, engine, directory, metrics)
        await watch.check()
        watching = asyncio.create_task(watch.run())
        stack.callback(watching.cancel)
        yield ServedModel(directory.name, embedder, directory.created, directory.precision)


async def _open_engine(directory: ModelDirectory, settings: Settings, metrics: Metrics) -> TritonEngine | Replicas:
    """Wait until Triton has the model ready; with several endpoints, until one of them has."""
    url, model, timeout_s = parse_triton_url(settings.triton_url), directory.name, settings.startup_timeout_s
    mode = SharedMemory(settings.shared_memory)
    if url.is_several and mode is SharedMemory.ON:
        raise StartupError("GATEWAY_SHARED_MEMORY=on needs a GATEWAY_TRITON_URL of one endpoint, on this host")
    async with explained(url.endpoints[0], settings.model_repository / model):
        if not url.is_several:
            show_bytes = partial(metrics.shared_memory, model)
            options = SharedMemoryOptions(mode, settings.max_batch_tokens, settings.slots_per_instance, show_bytes)
            return await open_triton_engine(url.endpoints[0], model, timeout_s, options)
        read_spec = partial(read_model_spec, model=model, timeout_s=_ANSWER_TIMEOUT_S)
        return await open_replicas(url, model, read_spec, TritonEngine, timeout_s, metrics)
