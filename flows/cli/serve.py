"""`ratchet serve`: a model behind OpenAI's interface, by vLLM or transformers."""

from __future__ import annotations

import os
import re
import sys

import uvicorn

from flows.cli import terminal
from flows.cli.listening import address_of, is_loopback, listen, token_for
from flows.model_use.model_kind import require_kind
from flows.model_use.model_server import transformers_app, vllm_command, vllm_environment
from flows.model_use.named_model import NamedModel, find_model
from flows.model_use.sampling_options import rollout_config
from flows.model_use.serving_gate import HEALTH, ServingGate
from stages.sampling.rollouts import engine_kind
from training_core.models import hub


def serve(
    name: str,
    *,
    host: str,
    port: int,
    token_variable: str,
    engine: str,
    dtype: str,
    max_tokens: int | None,
) -> None:
    """Serve a model until the process is told to stop.

    Args:
        name: the model; see `find_model`.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        token_variable: environment variable with the token; it must be set unless `host` is
            loopback.
        engine: auto, vllm or transformers.
        dtype: type of the weights in transformers.
        max_tokens: vLLM's limit of prompt and response together; None for that of the model.

    Raises:
        ConfigError: if there is no such model, the port is taken, the token is missing, or the
            engine cannot run here.
        DataError: if the model cannot be loaded.
    """
    terminal.hide_loading_bars()
    token = token_for(host, token_variable)
    model = find_model(name)
    config = hub.load_config(model.directory)
    require_kind(config, "policy", model.name)
    kind = engine_kind(rollout_config({"engine": engine}), config)
    listening = listen(host, port)
    port = listening.getsockname()[1]
    loopback_port = port if is_loopback(host) else None
    served, address = served_name(model), address_of(host, port)
    told = f"{address}/v1 under the name {served}; its health is at {address}{HEALTH}"
    if kind == "vllm":
        listening.close()
        terminal.echo(f"{model.name} will answer at {told}")
        command = vllm_command(model.directory, served, host=host, port=port, max_tokens=max_tokens)
        os.execve(sys.executable, command, vllm_environment(token, loopback_port))
    app = ServingGate(transformers_app(model.directory, served, dtype=dtype), token, loopback_port)
    terminal.echo(f"{model.name} answers at {told}")
    config = uvicorn.Config(app, lifespan="off", log_level="warning")
    uvicorn.Server(config).run(sockets=[listening])


def served_name(model: NamedModel) -> str:
    """Return the name of a model in requests, e.g. `tiny.policy-7`."""
    version = model.version
    name = f"{version.name}-{version.version}" if version else model.name.rstrip("/")
    return re.sub(r"[^\w.-]", "-", name.rpartition("/")[2]) or "model"
