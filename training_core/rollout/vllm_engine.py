"""Rollouts from vLLM, in this process. The only module that imports vllm."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from training_core.collector import exempt_present_objects, paused_collector
from training_core.errors import ConfigError
from training_core.rollout.digest import content_digest, digest_of_parts
from training_core.rollout.engine import (
    Policy,
    claim_ids,
    device_of,
    generate_in_order,
    named_weights,
    require_idle,
)
from training_core.rollout.engine_messages import Bucket
from training_core.rollout.sampling import RolloutRequest, Sampling
from training_core.rollout.stopping import StopRule
from training_core.rollout.weight_buckets import BUCKET_BYTES, fill_buckets
from training_core.rollout.weight_channels import Channel, LocalMemory
from training_core.types import Prompt, Rollout

CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes that vLLM's CPU attention has kernels for (vllm/v1/attention/backends/cpu_attn.py)."""

TRANSFER_BACKEND = "ratchet_buckets"
"""Name of our backend of vLLM's weight transfer; importing the worker extension registers it."""

WORKER_EXTENSION = "training_core.rollout.vllm_worker.WorkerExtension"


def why_not(config: PreTrainedConfig) -> str | None:
    """Return why vLLM cannot run a model with this Hugging Face config here, or None if it can."""
    if not torch.cuda.is_available() and (reason := _no_kernel(config)):
        return reason
    try:
        with paused_collector():
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


def require_whole_heads(config: Any, tensor_parallel_size: int) -> None:
    """Check that vLLM would copy no key-value head, which `digest_of_parts` would count twice.

    Raises:
        ConfigError: if the heads cannot be divided into so many parts.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    if heads % tensor_parallel_size:
        raise ConfigError(
            f"expected a tensor_parallel_size that divides the {heads} key-value heads of the "
            f"model, found {tensor_parallel_size}; lower rollouts.placement.tensor_parallel_size"
        )


def computing_dtype() -> torch.dtype:
    """Return the dtype in which vLLM computes here."""
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


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
        tensor_parallel_size: processes into which the weights are divided.
        sleeps: whether `sleep` frees the memory of the GPU; ignored on a CPU.
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
        tensor_parallel_size: int = 1,
        sleeps: bool = False,
        kv_cache_gib: int = 1,
    ) -> None:
        on_gpu = torch.cuda.is_available()
        self._dtype = computing_dtype()
        self._sleeps, self._is_asleep = sleeps and on_gpu, False
        # One process: a weight sync is a function call, and the engine ends when the stage ends.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        if not on_gpu:
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_cache_gib))
        with paused_collector():
            from vllm import LLM  # noqa: PLC0415 - reads the environment when imported
            from vllm.config import WeightTransferConfig  # noqa: PLC0415
        exempt_present_objects()  # because the next line searches for garbage several times

        self._llm = LLM(
            str(directory),
            trust_remote_code=False,
            dtype="bfloat16" if on_gpu else "float32",
            max_model_len=max_tokens,
            enforce_eager=True,
            disable_log_stats=True,
            enable_prefix_caching=True,
            gpu_memory_utilization=gpu_memory_fraction if on_gpu else 0.9,
            logprobs_mode="processed_logprobs",  # after the temperature, like the trainer's
            worker_extension_cls=WORKER_EXTENSION,
            weight_transfer_config=WeightTransferConfig(backend=TRANSFER_BACKEND),
            tensor_parallel_size=tensor_parallel_size,
            # With one part its worker is in this process. Ray places no parts of an engine.
            distributed_executor_backend="mp" if tensor_parallel_size > 1 else "uni",
            enable_sleep_mode=self._sleeps,
            seed=0,
        )
        self._tokenizer = tokenizer
        self._unfinished: dict[str, RolloutRequest] = {}
        self._rules: dict[Sampling, StopRule] = {}
        self._done: deque[tuple[str, Rollout]] = deque()
        self.policy_version = 0
        self.steps = 0

    def load_weights(self, policy: Policy, version: int) -> str:
        """Reload weights in place; see `RolloutEngine.load_weights`."""
        memory = torch.empty(BUCKET_BYTES, dtype=torch.uint8, device=device_of(policy))
        self.join(LocalMemory(memory))
        return self.receive_weights(fill_buckets(named_weights(policy), memory), version)

    def join(self, channel: Channel) -> None:
        """Receive weights through this channel from now on."""
        self._llm.init_weight_transfer_engine({"init_info": {"channel": channel}})

    def receive_weights(self, buckets: Iterable[Bucket], version: int) -> str:
        """Reload weights that arrive in buckets, and clear cached prefixes.

        See `ReceivingEngine.receive_weights`. Of an engine that sleeps first the weights wake up,
        then the cache, so that both are never there beside the bucket's tensors.
        """
        require_idle(self._unfinished, version)
        if self._is_asleep:
            self._llm.wake_up(["weights"])
        self._llm.start_weight_update()
        for bucket in buckets:
            self._llm.update_weights({"update_info": {"pieces": bucket.pieces}})
            self.steps += 1
        self._llm.finish_weight_update()
        parts = self._llm.collective_rpc("complete_update", args=(self._dtype,))
        if self._is_asleep:
            self._llm.wake_up(["kv_cache"])
            self._is_asleep = False
        self._llm.reset_prefix_cache()
        self.policy_version = version
        return digest_of_parts(parts)

    def digest_of(self, weights: Iterable[tuple[str, Tensor]]) -> str:
        """Return the digest of the numbers in weights; see `RolloutEngine.digest_of`."""
        return content_digest((tensor for _, tensor in weights), self._dtype)

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        """Add requests to vLLM's queue; see `RolloutEngine.submit`."""
        from vllm.inputs import tokens_input  # noqa: PLC0415 - see above

        for sampling in {request.sampling for request in requests} - self._rules.keys():
            self._rules[sampling] = StopRule(self._tokenizer, sampling)
        claim_ids(self._unfinished, requests)
        for request in requests:
            self._llm.llm_engine.add_request(
                request.id,
                tokens_input(list(request.prompt.input_ids)),
                _parameters(request, self._rules[request.sampling]),
            )

    def finished(self) -> Iterator[tuple[str, Rollout]]:
        """Let vLLM do steps and yield rollouts; see `RolloutEngine.finished`."""
        while self._unfinished or self._done:
            if self._done:
                yield self._done.popleft()
            else:
                self.steps += 1
                with _uncompiled_on_cpu():
                    outputs = self._llm.llm_engine.step()
                for output in outputs:
                    self._take(output)

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, *, seeds: Sequence[int]
    ) -> list[Rollout]:
        """Sample one response per prompt; see `generate_in_order`."""
        return generate_in_order(self, prompts, sampling, seeds)

    def sleep(self) -> None:
        """Free the memory of weights and cache on the GPU; see `RolloutEngine.sleep`.

        Level 2 keeps no copy of the weights, because new ones come with the next sync.
        """
        require_idle(self._unfinished, self.policy_version)
        if self._sleeps and not self._is_asleep:
            self._llm.sleep(level=2)
            self._is_asleep = True

    def close(self) -> None:
        """Shut the engine down and free its memory."""
        del self._llm

    def _take(self, output: Any) -> None:
        """Keep the rollout if vLLM's `output` is the whole response."""
        if (request := self._unfinished.get(output.request_id)) is None:
            return  # vLLM had begun one more token of a response that a stop string ended
        (completion,) = output.outputs
        ids = completion.token_ids
        rule = self._rules[request.sampling]
        if not output.finished:
            if not rule.is_met(ids):
                return
            self._llm.llm_engine.abort_request([request.id])
        logprobs = [at[token].logprob for token, at in zip(ids, completion.logprobs, strict=True)]
        del self._unfinished[request.id]
        rollout = rule.rollout(request.prompt, ids, logprobs, self.policy_version)
        self._done.append((request.id, rollout))


def _parameters(request: RolloutRequest, rule: StopRule) -> Any:
    """Return vLLM's parameters of a request.

    Stop strings are not among them: `StopRule` finds them in the text of all engines alike, so it
    needs to see every step.
    """
    from vllm import SamplingParams  # noqa: PLC0415 - see above
    from vllm.sampling_params import RequestOutputKind  # noqa: PLC0415 - see above

    sampling = request.sampling
    sees_steps = bool(sampling.stop)
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k or 0,  # 0 keeps all
        min_p=sampling.min_p,
        max_tokens=sampling.max_response_tokens,
        logprobs=0,
        seed=request.seed,
        # The only end tokens are that of training and the configured ones. vLLM would also stop at
        # the other ids in generation_config.json.
        ignore_eos=True,
        stop_token_ids=rule.token_ids,
        detokenize=False,
        output_kind=RequestOutputKind.CUMULATIVE if sees_steps else RequestOutputKind.FINAL_ONLY,
    )
