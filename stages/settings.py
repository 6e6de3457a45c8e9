"""Pieces of configuration that several stages share.

Reading them imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stages.contract import Block, StageConfig, operational, semantic


class Optimizer(Block):
    """AdamW and its schedule."""

    learning_rate: float = semantic(1e-5, "Peak learning rate.", gt=0)
    schedule: Literal["constant", "linear", "cosine"] = semantic(
        "cosine", "Shape after the warm-up."
    )
    warmup_fraction: float = semantic(
        0.05, "Share of the steps in which the rate rises.", ge=0, le=1
    )
    weight_decay: float = semantic(0.0, "Decoupled weight decay, on matrices only.", ge=0)
    max_grad_norm: float = semantic(1.0, "The gradient is scaled down to this norm.", gt=0)


class SteadyOptimizer(Optimizer):
    """AdamW at a constant rate: what reinforcement learning starts from."""

    schedule: Literal["constant", "linear", "cosine"] = semantic(
        "constant", "Shape after the warm-up."
    )


class Training(Block):
    """How a model is fitted to a fixed dataset."""

    epochs: float = semantic(1.0, "Passes over the data.", gt=0)
    batch_size: int = semantic(64, "Examples (or pairs) per optimizer step.", gt=0)
    max_tokens: int = semantic(
        1024, "Longest prompt and response together; longer rows are dropped, never cut.", gt=1
    )
    optimizer: Optimizer = semantic(Optimizer(), "AdamW and its schedule.")
    micro_batch_tokens: int = operational(
        8192, "Padded tokens in memory at once; does not change the gradient.", gt=0
    )
    save_every_steps: int = operational(100, "Optimizer steps between checkpoints.", gt=0)
    keep_checkpoints: int = operational(2, "Complete checkpoints that stay.", gt=0)


class CafeData(Block):
    """The café's rows, made from a seed; see `training_core.data.cafe`."""

    name: Literal["cafe"] = semantic("cafe", "Which kind of source this is.")
    split: Literal["train", "heldout"] = semantic(
        "train", "No order of one split occurs in the other."
    )
    size: int = semantic(1000, "Rows.", gt=0)
    seed: int = semantic(0, "Seed of the generator.")
    flipped_fraction: float = semantic(0.0, "Share of pairs with swapped labels.", ge=0, lt=0.5)


class FileData(Block):
    """A local file: json, jsonl (also .gz), csv, parquet or arrow.

    Its content is part of the stage key.
    """

    name: Literal["files"] = semantic("files", "Which kind of source this is.")
    path: str = operational(..., "File, relative to `data_root`.")
    columns: dict[str, str] = semantic(
        {}, "Role (messages, prompt, response, chosen, rejected) -> column."
    )
    limit: int | None = semantic(None, "Use the first rows only.", gt=0)


class HubData(Block):
    """A dataset of the Hugging Face hub."""

    name: Literal["hub"] = semantic("hub", "Which kind of source this is.")
    repo: str = semantic(..., "Repository id.")
    revision: str = semantic(
        "main", "Branch, tag or commit; a flow resolves it to a commit when it starts."
    )
    split: str = semantic("train", "Split to read.")
    columns: dict[str, str] = semantic(
        {}, "Role (messages, prompt, response, chosen, rejected) -> column."
    )
    limit: int | None = semantic(None, "Use the first rows only.", gt=0)


Data = Annotated[CafeData | FileData | HubData, Field(discriminator="name")]


class ScratchModel(Block):
    """A small Llama with random weights and one token per word of the training data."""

    name: Literal["scratch"] = semantic("scratch", "Which kind of start this is.")
    hidden_size: int = semantic(
        128, "Width; hidden_size / num_heads >= 32 also runs in vLLM on a CPU.", gt=0
    )
    num_layers: int = semantic(2, "Transformer layers.", gt=0)
    num_heads: int = semantic(4, "Attention heads.", gt=0)
    intermediate_size: int = semantic(384, "Width of the feed-forward part.", gt=0)


class LocalModel(Block):
    """A Hugging Face directory; its content is part of the stage key."""

    name: Literal["local"] = semantic("local", "Which kind of start this is.")
    path: str = operational(..., "Directory, relative to `data_root`.")


class HubModel(Block):
    """A model of the Hugging Face hub."""

    name: Literal["hub"] = semantic("hub", "Which kind of start this is.")
    repo: str = semantic(..., "Repository id.")
    revision: str = semantic(
        "main", "Branch, tag or commit; a flow resolves it to a commit when it starts."
    )


BaseModelSource = Annotated[ScratchModel | LocalModel | HubModel, Field(discriminator="name")]


class Rollouts(Block):
    """How responses are sampled.

    Always from the whole distribution, so that their probabilities are known.
    """

    engine: Literal["auto", "vllm", "transformers"] = semantic(
        "auto",
        "auto takes vLLM where it can run the model, else transformers, "
        "and the log says which and why.",
    )
    max_response_tokens: int = semantic(256, "Longest response.", gt=0)
    max_tokens: int = semantic(1024, "Longest prompt and response together.", gt=1)
    temperature: float = semantic(1.0, "Of the sampled distribution.", gt=0)
    logprob_gap_limit: float = semantic(
        0.02,
        "Largest mean difference between sampler's and trainer's log-probabilities, "
        "in nats per token.",
        gt=0,
    )
    gpu_memory_fraction: float = operational(
        0.4, "Share of a GPU that the engine may take.", gt=0, lt=1
    )


class CafeReward(Block):
    """The café's true reward."""

    name: Literal["cafe"] = semantic("cafe", "Which reward this is.")


class LexiconReward(Block):
    """Sentiment by a lexicon: a jsonl(.gz) file with `token` and `mean`."""

    name: Literal["lexicon"] = semantic("lexicon", "Which reward this is.")
    path: str = operational(..., "File, relative to `data_root`.")
    ignore: tuple[str, ...] = semantic((), "Literal strings that are cut out first.")


class RewardModelReward(Block):
    """The reward model that this lifecycle trained."""

    name: Literal["reward_model"] = semantic("reward_model", "Which reward this is.")
    normalise: bool = semantic(
        True, "Shift and scale by the mean and deviation stored with the model."
    )


Reward = Annotated[CafeReward | LexiconReward | RewardModelReward, Field(discriminator="name")]


class GroupSampling(StageConfig):
    """What the stages that make a dataset of sampled responses have in common."""

    prompts: Data = semantic(..., "Prompts to answer.")
    reward: Reward = semantic(RewardModelReward(), "What ranks the responses.")
    rollouts: Rollouts = semantic(Rollouts(), "How responses are sampled.")
    group_size: int = semantic(8, "Responses per prompt.", ge=2)
    keep_unfinished: bool = semantic(
        False,
        "Use responses that were cut by the token limit too (without an end token), "
        "for open-ended texts.",
    )
    unscored_limit: float = semantic(
        0.02, "Tolerated share of rollouts without a reward.", ge=0, le=1
    )


LOCAL_SOURCES = (FileData, LocalModel, LexiconReward)
"""Blocks with a `path`, whose content has to be part of the stage key."""
