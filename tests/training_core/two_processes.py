"""Run one function in several processes that are connected, as ranks of one training."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from training_core.data.batching import collate, share_of_rank
from training_core.dist_info import DistInfo
from training_core.distributed import connected
from training_core.types import Batch, Example


def together(world_size: int, folder: Path, body: Callable[..., Any], *args: Any) -> list[Any]:
    """Run `body(ranks, *args)` on every rank and return what each returned."""
    folder.mkdir(parents=True, exist_ok=True)
    arguments = (world_size, folder, body, args)
    torch.multiprocessing.start_processes(
        _run, arguments, nprocs=world_size, start_method="forkserver"
    )
    return [torch.load(folder / f"{r}.pt", weights_only=False) for r in range(world_size)]


def _run(rank: int, world_size: int, folder: Path, body: Callable[..., Any], args: Any) -> None:
    torch.set_num_threads(1)
    os.environ["DS_ACCELERATOR"] = "cpu"
    dist_info = DistInfo(rank, world_size, rank)
    with connected(dist_info, f"file://{folder / 'meeting'}"):
        torch.save(body(dist_info, *args), folder / f"{rank}.pt")


def tiny_llama(dtype: torch.dtype = torch.float32, seed: int = 0, num_heads: int = 2) -> Any:
    """Two layers with random weights and tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=40,
        hidden_size=8 * num_heads,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=num_heads,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).to(dtype)


def scalar_model(dtype: torch.dtype = torch.float32) -> Any:
    """A reward model of two layers, with the head in single precision as `hub` loads it."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(3)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=40, **sizes, **heads, num_labels=1, pad_token_id=0)
    model = LlamaForSequenceClassification(config).to(dtype).eval()
    model.score.float()
    return model


# The third batch has one micro-batch, so that of two ranks one has nothing to do.
LENGTHS = ((12, 3, 7, 5, 9), (4, 4, 11), (6,), (8, 2, 10, 3))


def micro_batches(step: int) -> list[Batch]:
    """One sequence per micro-batch, of different lengths; the same whenever it is asked."""
    generator = torch.Generator().manual_seed(step)
    examples = [
        Example(
            tuple(torch.randint(5, 40, (n,), generator=generator).tolist()), (0,) + (1,) * (n - 1)
        )
        for n in LENGTHS[step]
    ]
    return [collate([example], 0) for example in examples]


def share(step: int, dist_info: DistInfo, *, even: bool) -> list[Any]:
    """What one rank computes of the batch of `step`."""
    whole = micro_batches(step)
    costs = [batch.input_ids.numel() for batch in whole]
    return share_of_rank(whole, costs, dist_info.data_rank, dist_info.data_world_size, even=even)
