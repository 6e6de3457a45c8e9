"""Peaks of tensors' memory in real training steps, for comparison with estimates."""

from __future__ import annotations

import weakref
from functools import partial

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification

from training_core.algorithms.reward_losses import bradley_terry
from training_core.data.batching import collate
from training_core.engine.optimizers import OPTIMIZERS
from training_core.engine.torch_engine import TorchEngine
from training_core.loop import train_steps
from training_core.models.preparing import prepare
from training_core.objectives.preference import PairBatch, pairwise_reward
from training_core.objectives.supervised import supervised
from training_core.types import Example

CLASSES = {"lm_head": AutoModelForCausalLM, "score": AutoModelForSequenceClassification}
PRODUCTS = {torch.ops.aten.mm, torch.ops.aten.bmm, torch.ops.aten.addmm}


class TensorBytes(TorchDispatchMode):
    """Bytes of all tensors that are alive and were made inside, and their largest sum.

    torch's own MemTracker puts hooks on modules, which fail where a layer's input has no gradient,
    e.g. below an adapter. Products in half precision are computed in single precision, since a CPU
    without instructions for them needs a hundred times as long; what is made within an operation
    does not count.
    """

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._seen = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func.overloadpacket in PRODUCTS and args[0].dtype == torch.bfloat16:
            result = _product(func.overloadpacket, *args, **kwargs)
        else:
            result = func(*args, **kwargs)
        tree_map_only(Tensor, self._count, result)
        return result

    def _count(self, tensor):
        storage = tensor.untyped_storage()
        if storage not in self._seen:
            self._seen[storage] = True
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, size):
        self.now -= size


def _product(operation, *args, out=None, **kwargs):
    result = operation(*(arg.float() for arg in args), **kwargs).bfloat16()
    return result if out is None else out.copy_(result)


def model_of(fields, use):
    """A model with random weights, as a stage prepares it."""
    own = dict(fields)
    config = AutoConfig.for_model(own.pop("model_type"), **own, num_labels=1, pad_token_id=0)
    arguments = {"dtype": getattr(torch, use.options.dtype)}
    if use.options.attention != "auto":
        arguments["attn_implementation"] = use.options.attention
    model = CLASSES[use.head].from_config(config, **arguments)
    return prepare(model, use.options).train()


def batch_of(rows, tokens, vocabulary):
    """Rows of random tokens that are all trained, except the first."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, vocabulary, (rows, tokens), generator=generator).tolist()
    return collate([Example(tuple(row), (0, *[1] * (tokens - 1))) for row in ids], pad_id=0)


def steps_of(engine, batch, *, head, count=2):
    """Steps of two micro-batches each, so that gradients are added up."""
    if head == "score":
        objective = pairwise_reward(partial(bradley_terry, centering_coef=0.0))
        item = PairBatch(batch)
    else:
        objective, item = supervised, batch
    return list(train_steps(engine, objective, [[item, item]] * count))


def measured_peak(fields, use, *, rows, tokens, has_mask=False):
    """Largest number of bytes in tensors during two steps of plain torch."""
    batch = batch_of(rows, tokens, fields["vocab_size"])
    if has_mask:  # padding on the left, which causal attention does not exclude by itself
        batch.attention_mask[:, 0] = False
    with TensorBytes() as held:
        model = model_of(fields, use)
        engine = TorchEngine(
            model, learning_rate=1e-4, schedule=lambda _: 1.0, optimizer=OPTIMIZERS[use.optimizer]
        )
        steps_of(engine, batch, head=use.head)
    return held.peak


def sharded_peak(dist_info, fields, use, rows, tokens):
    """Largest number of bytes in tensors of a worker during two steps of DeepSpeed."""
    from training_core.engine.deepspeed_engine import DeepSpeedEngine
    from training_core.engine.zero import Zero

    batch = batch_of(rows, tokens, fields["vocab_size"])
    sharding = use.sharding
    with TensorBytes() as held:
        zero = Zero(sharding.zero_stage, sharding.offload_optimizer, sharding.offload_parameters)
        engine = DeepSpeedEngine(
            model_of(fields, use),
            zero,
            learning_rate=1e-4,
            schedule=lambda _: 1.0,
            dist_info=dist_info,
        )
        steps_of(engine, batch, head=use.head)
        with engine.gathered_weights():
            pass
    return held.peak
