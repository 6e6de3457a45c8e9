"""Servers with OpenAI's interface: that of transformers in this process, or vLLM's command."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import ASGIApp
from transformers.utils.import_utils import is_serve_available

from flows.local_services.paths import project_root
from flows.model_use.serving_gate import PORT_VARIABLE, TOKEN_VARIABLE, GateOfEnvironment
from training_core.errors import ConfigError


def transformers_app(directory: Path, served: str, *, dtype: str) -> ASGIApp:
    """Load a model into the server of transformers; changes the working directory.

    That server names a model by its path and takes no other name. So the path is made: a link in
    a folder that becomes the working directory.

    Args:
        directory: the model.
        served: its name in requests, without `@`, `:` and `/`.
        dtype: of the weights.

    Raises:
        ConfigError: if its packages are not installed.
    """
    if not is_serve_available():
        raise ConfigError(
            "the server of transformers needs fastapi and openai, which come with vLLM, found "
            "none; `pip install 'transformers[serving]'`"
        )
    from transformers.cli.serving.chat_completion import (  # noqa: PLC0415 - needs them
        ChatCompletionHandler,
    )
    from transformers.cli.serving.completion import CompletionHandler  # noqa: PLC0415
    from transformers.cli.serving.model_manager import ModelManager  # noqa: PLC0415
    from transformers.cli.serving.response import ResponseHandler  # noqa: PLC0415
    from transformers.cli.serving.server import build_server  # noqa: PLC0415
    from transformers.cli.serving.transcription import TranscriptionHandler  # noqa: PLC0415
    from transformers.cli.serving.utils import GenerationState  # noqa: PLC0415

    folder = Path(tempfile.mkdtemp(prefix="ratchet-serve-"))
    (folder / served).symlink_to(directory, target_is_directory=True)
    os.chdir(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    models = ModelManager(device=device, dtype=dtype, force_model=served)
    state = GenerationState()
    server = build_server(
        models,
        ChatCompletionHandler(model_manager=models, generation_state=state),
        completion_handler=CompletionHandler(model_manager=models, generation_state=state),
        response_handler=ResponseHandler(model_manager=models, generation_state=state),
        transcription_handler=TranscriptionHandler(models, state),
        generation_state=state,
    )

    async def list_models(_: Request) -> JSONResponse:
        """Name the one model; the server itself would list the cache of the hub."""
        model = {"id": served, "object": "model", "owned_by": "ratchet", "created": 0}
        return JSONResponse({"object": "list", "data": [model]})

    return Starlette(routes=[Route("/v1/models", list_models), Mount("/", app=server)])


def vllm_command(
    directory: Path, served: str, *, host: str, port: int, max_tokens: int | None
) -> list[str]:
    """Return the command of vLLM's server.

    Args:
        directory: the model.
        served: its name in requests.
        host: address to listen at.
        port: port to listen at.
        max_tokens: limit of prompt and response together; None for that of the model.
    """
    gate = f"{GateOfEnvironment.__module__}.{GateOfEnvironment.__name__}"
    # `vllm serve` asks for the version of a package `vllm`; the builds for CPUs have another name.
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += [
        "--model",
        str(directory),
        "--served-model-name",
        served,
        "--host",
        host,
        "--port",
        str(port),
    ]
    command += ["--middleware", gate, "--allowed-origins", "[]"]
    if torch.cuda.is_available():
        command += ["--dtype", "bfloat16"]
    else:
        command += ["--dtype", "float32", "--enforce-eager"]
    return command + (["--max-model-len", str(max_tokens)] if max_tokens else [])


def vllm_environment(token: str | None, loopback_port: int | None) -> Mapping[str, str]:
    """Return the environment of vLLM's server, with the arguments of its gate."""
    own = {TOKEN_VARIABLE: token, PORT_VARIABLE: loopback_port and str(loopback_port)}
    path = os.pathsep.join(filter(None, [str(project_root()), os.environ.get("PYTHONPATH")]))
    on_cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "TORCH_COMPILE_DISABLE": "1"}  # it takes a minute
    return {
        **({} if torch.cuda.is_available() else on_cpu),
        **os.environ,
        "PYTHONPATH": path,  # so that the gate is importable
        **{name: value for name, value in own.items() if value},
    }
