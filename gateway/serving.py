"""Opens the served models, checks them, and closes them again. Called by app at start and stop."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from threading import Event

from gateway.embedder import Embedder, Limits
from gateway.engine_match import explained
from gateway.metrics import Metrics
from gateway.model_directory import ModelDirectory, find_models, read_model_directory
from gateway.registry import Registry, ServedModel
from gateway.scheduler import Scheduler
from gateway.settings import Settings
from gateway.token_ids import TokenIds
from gateway.tokenizer import Tokenizer
from gateway.triton import open_triton_engine
from gateway.watch import ModelWatch

_POOLING_THREADS = 2


@asynccontextmanager
async def open_registry(settings: Settings, metrics: Metrics, stopping: Event) -> AsyncIterator[Registry]:
    """Open every model that the settings name; on leaving the block, close them.

    `stopping` is set from outside when the gateway begins to stop. Local files are checked before Triton is waited for.
    A model that fails its self-check is served as not ready.

    Raises:
        StartupError: a model directory, Triton or the two together are not as they must be.
    """
    repository = settings.model_repository
    names = settings.models or find_models(repository)
    directories = [read_model_directory(repository, name) for name in names]
    async with AsyncExitStack() as stack:
        models = [
            await stack.enter_async_context(_open_model(directory, settings, metrics)) for directory in directories
        ]
        yield Registry(models, settings.model_aliases, stopping)


def served_names(settings: Settings) -> list[str]:
    """Return the public names of the models that will be served."""
    return list(settings.models or find_models(settings.model_repository))


@asynccontextmanager
async def _open_model(directory: ModelDirectory, settings: Settings, metrics: Metrics) -> AsyncIterator[ServedModel]:
    async with AsyncExitStack() as stack:
        async with explained(settings.triton_url, settings.model_repository / directory.name):
            engine = await open_triton_engine(settings.triton_url, directory.name, settings.startup_timeout_s)
        stack.push_async_callback(engine.close)
        spec = engine.spec
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
            slots=spec.instances * settings.slots_per_instance,
            max_batch_tokens=settings.max_batch_tokens,
            max_delay_s=settings.max_batch_delay_ms / 1000,
            executor=pooling_threads,
            metrics=metrics,
            model=directory.name,
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
        watch = ModelWatch(embedder, engine, directory, metrics)
        await watch.check()
        watching = asyncio.create_task(watch.run())
        stack.callback(watching.cancel)
        yield ServedModel(directory.name, embedder, directory.created)
