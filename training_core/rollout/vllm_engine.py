"""Rollouts from vLLM, in this process. The only module that imports vllm."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from training_core.data.chat import decode, eos_id
from training_core.rollout.engine import Sampling, named_weights
from training_core.types import Prompt, Rollout

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's CPU attention has kernels for (vllm/v1/attention/backends/cpu_attn.py)."""

WORKER_EXTENSION = "training_core.rollout.vllm_worker.WeightReceiver"


def why_not(config: PreTrainedConfig) -> str | None:
    """Return why vLLM cannot run a model with this Hugging Face config here, or None if it can."""
    if not torch.cuda.is_available() and (reason := _no_kernel(config)):
        return reason
    try:
        import vllm  # noqa: F401, PLC0415 - takes seconds, so it is the last check
    except ImportError as error:
        return f"vLLM cannot be imported ({error})"
    return None


def _no_kernel(config: Any) -> str | None:
    head_size = (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    if head_size in CPU_HEAD_SIZES:
        return None
    return f"vLLM's CPU attention has no kernel for head size {head_size} (it has {CPU_HEAD_SIZES})"


def _uncompiled_on_cpu() -> AbstractContextManager[object]:
    """Disable the compilation of the sampler on a CPU, which takes 2 to 10 s at the first call.

    TORCH_COMPILE_DISABLE has no effect here, because the compiler is already imported.
    """
    on_gpu = torch.cuda.is_available()
    return nullcontext() if on_gpu else torch.compiler.set_stance("force_eager")


class VllmEngine:
    """Samples with vLLM, whose weights are replaced at every sync.

    Args:
        directory: a Hugging Face directory with the architecture and the first weights.
        tokenizer: tokenizer of the policy.
        max_tokens: limit of prompt and response together.
        gpu_memory_fraction: share of the GPU that vLLM may take; ignored on a CPU.
        kv_cache_gib: size of the key-value cache on a CPU.
    """

    name = "vllm"

    def __init__(
        self,
        directory: Path,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_tokens: int,
        gpu_memory_fraction: float = 0.4,
        kv_cache_gib: int = 1,
    ) -> None:
        on_gpu = torch.cuda.is_available()
        # One process: a weight sync is a function call, and the engine ends when the stage ends.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if not on_gpu:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_cache_gib))
        from vllm import LLM  # noqa: PLC0415 - reads the environment when imported

        self._llm = LLM(
            str(directory),
            dtype="bfloat16" if on_gpu else "float32",
            max_model_len=max_tokens,
            enforce_eager=True,
            disable_log_stats=True,
            enable_prefix_caching=True,
            gpu_memory_utilization=gpu_memory_fraction if on_gpu else 0.9,
            logprobs_mode="processed_logprobs",  # after the temperature, like the trainer's
            worker_extension_cls=WORKER_EXTENSION,
            seed=0,
        )
        self._tokenizer = tokenizer
        self.policy_version = 0

    def load_weights(self, policy: nn.Module, version: int) -> str:
        """Reload weights in place and clear cached prefixes; see `RolloutEngine.load_weights`."""
        weights = [(name, tensor.detach()) for name, tensor in named_weights(policy)]
        (digest,) = self._llm.collective_rpc("receive_weights", args=(weights,))
        self._llm.reset_prefix_cache()
        self.policy_version = version
        return digest

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, seeds: Sequence[int]
    ) -> list[Rollout]:
        """Sample one response per prompt; see `RolloutEngine.generate`."""
        from vllm import SamplingParams, TokensPrompt  # noqa: PLC0415 - see above

        requests = [TokensPrompt(prompt_token_ids=list(p.input_ids)) for p in prompts]
        settings = [
            SamplingParams(
                temperature=sampling.temperature,
                max_tokens=sampling.max_response_tokens,
                logprobs=0,
                seed=seed,
                stop_token_ids=[eos_id(self._tokenizer)],
                skip_special_tokens=True,
            )
            for seed in seeds
        ]
        with _uncompiled_on_cpu():
            outputs = self._llm.generate(requests, settings, use_tqdm=False)
        return [self._rollout(p, o.outputs[0]) for p, o in zip(prompts, outputs, strict=True)]

    def close(self) -> None:
        """Shut the engine down and free its memory."""
        del self._llm

    def _rollout(self, prompt: Prompt, completion: Any) -> Rollout:
        ids = tuple(completion.token_ids)
        logprobs = tuple(
            at[token].logprob for token, at in zip(ids, completion.logprobs, strict=True)
        )
        return Rollout(
            prompt=prompt,
            response_ids=ids,
            logprobs=logprobs,
            text=decode(self._tokenizer, ids),
            is_finished=ids[-1:] == (eos_id(self._tokenizer),),
            policy_version=self.policy_version,
        )
