"""What the DeepSpeed engine refuses before any process starts."""

import pytest
import torch
from two_processes import tiny_llama

from training_core.errors import ConfigError


def test_the_state_of_another_engine_or_stage_is_refused():
    from training_core.engine.deepspeed_engine import DeepSpeedEngine
    from training_core.engine.zero import Zero

    engine = DeepSpeedEngine.__new__(DeepSpeedEngine)
    engine._zero = Zero(2)
    of_two = {"kind": "deepspeed", "zero_stage": 2, "tensor_parallel_size": 2}
    with pytest.raises(ConfigError, match=r"made with tensor_parallel_size 2, and .* is 1"):
        engine.load_state_dict(of_two)
    with pytest.raises(ConfigError, match=r"made by the engine 'torch'.* is 'deepspeed'"):
        engine.load_state_dict({"kind": "torch"})
    with pytest.raises(ConfigError, match=r"made with zero_stage 3, and .* is 2"):
        engine.load_state_dict({"kind": "deepspeed", "zero_stage": 3})


def test_zero_3_refuses_trained_weights_of_two_dtypes():
    from training_core.engine.zero import Zero, require_one_dtype

    model = tiny_llama().to(torch.bfloat16)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.float())
    require_one_dtype(model, Zero(2))
    with pytest.raises(ConfigError, match="found bfloat16 and float32"):
        require_one_dtype(model, Zero(3))
