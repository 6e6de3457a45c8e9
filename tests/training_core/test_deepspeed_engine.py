"""DeepSpeed on two gloo processes is plain torch: the same losses, norms and weights."""

import os
from dataclasses import replace

import pytest
import torch
from two_processes import (
    LENGTHS,
    micro_batches,
    scalar_model,
    share,
    tiny_llama,
    together,
)

from training_core.dist_info import SINGLE_PROCESS
from training_core.engine.torch_engine import TorchEngine
from training_core.errors import ConfigError, IntegrityError, NonFiniteError
from training_core.loop import train_steps
from training_core.models.causal_lm import logprobs
from training_core.models.scalar_head import sequence_scores
from training_core.objectives.supervised import supervised
from training_core.rollout.engine import named_weights
from training_core.types import Loss

pytest.importorskip("deepspeed")
STAGES = (0, 1, 2, 3)
SETTINGS = {
    "learning_rate": 1e-2,
    "schedule": lambda step: 1.0 / (1 + step),
    "weight_decay": 0.1,
    "max_grad_norm": 0.5,  # below each norm of this run, so that clipping is seen
}
HALF = 2
GROUP_BYTES = 3000
"""More than the largest weight of `tiny_llama`, 40 * 16 * 4 bytes, and less than two of them."""


def engine_of(dist_info, stage, dtype=torch.float32, **zero):
    if stage is None:
        return TorchEngine(tiny_llama(), **SETTINGS, dist_info=dist_info)
    from training_core.engine.deepspeed_engine import DeepSpeedEngine
    from training_core.engine.zero import Zero

    model = tiny_llama(dtype)
    return DeepSpeedEngine(model, Zero(stage, **zero), **SETTINGS, dist_info=dist_info)


def train(engine, dist_info, steps, objective=supervised):
    batches = [share(step, dist_info, even=engine.needs_even_ranks) for step in steps]
    return list(train_steps(engine, objective, batches, first_step=steps[0], dist_info=dist_info))


def weights_of(engine):
    with engine.gathered_weights() as model:
        return {name: weight.clone() for name, weight in model.state_dict().items()}


def steps_in_two_halves(dist_info, stage, folder, **zero):
    """Four steps; what stands between them is saved."""
    engine = engine_of(dist_info, stage, **zero)
    dist_info = replace(dist_info, tensor_parallel_size=zero.get("tensor_parallel_size", 1))
    reports = train(engine, dist_info, range(HALF))
    engine.save_shards(folder / f"zero-{stage}")
    state = engine.state_dict()
    reports += train(engine, dist_info, range(HALF, len(LENGTHS)))
    weights = weights_of(engine)
    engine.finish()
    return {
        "reports": reports,
        "weights": weights,
        "kept": engine.model.state_dict(),
        "state": state,
    }


def computed(dist_info, stage):
    """What a trained model computes, by its layers and by the plain model; and what is sent."""
    engine = engine_of(dist_info, stage)
    train(engine, dist_info, range(1))
    batches = [*micro_batches(0), *micro_batches(1)]
    with engine.at_work():
        ours = [engine.compute(logprobs, batch) for batch in batches]
        named = named_weights(engine.weights_to_send())
        sent = {name: weight.clone() for name, weight in named}
    training_goes_on = engine.loss(supervised, batches[0]).total.requires_grad
    with engine.gathered_weights() as model:
        with engine.gathered_weights():
            pass  # the inner use is not the last
        whole = {name: weight.clone() for name, weight in model.named_parameters()}
        theirs = [logprobs(model.eval(), batch).detach() for batch in batches]
    return {
        "ours": ours, "theirs": theirs, "sent": sent, "whole": whole,
        "training goes on": training_goes_on, "first": on_first_rank(engine),
    }  # fmt: skip


def on_first_rank(engine):
    """The weights of the plain model while the first rank has all, afterwards, and at the end."""

    def seen():
        return {name: p.detach().clone() for name, p in engine.model.named_parameters()}

    with engine.weights_on_first_rank():
        saved = seen()
    empty = seen()
    engine.finish(only_first_rank=True)
    return {"saved": saved, "empty": empty, "finished": seen()}


def resumed(dist_info, stage, state, folder):
    engine = engine_of(dist_info, stage)
    engine.load_state_dict(state)
    engine.load_shards(folder / f"zero-{stage}", folder / f"universal-{stage}")
    reports = train(engine, dist_info, range(HALF, len(LENGTHS)))
    weights = weights_of(engine)
    engine.finish()
    return {"reports": reports, "weights": weights}


def refusal(dist_info, num_heads, **zero):
    from training_core.engine.deepspeed_engine import DeepSpeedEngine
    from training_core.engine.zero import Zero

    try:
        DeepSpeedEngine(
            tiny_llama(num_heads=num_heads), Zero(2, **zero), **SETTINGS, dist_info=dist_info
        )
    except ConfigError as error:
        return str(error)
    return ""


def overflow(dist_info, stage, dtype=torch.float32):
    """A step whose gradient is infinite though its loss is not."""
    engine = engine_of(dist_info, stage, dtype)
    before = weights_of(engine)

    def steep(model, batch):
        loss = supervised(model, batch)
        weight = model.model.norm.weight
        return Loss(loss.total + ((weight - weight.detach()).sum() ** 2).sqrt(), loss.count)

    message = ""
    try:
        train(engine, dist_info, range(1), steep)
    except NonFiniteError as error:
        message = str(error)
    return message, before, weights_of(engine)


def reward_model(dist_info, stage):
    """Steps of a reward model in bfloat16, whose head `hub` loads in single precision."""
    from stages.configs.training_config import AdamWConfig, DeepSpeedEngineConfig
    from stages.training.engines import make_engine

    model = scalar_model(torch.bfloat16)
    settings = AdamWConfig(learning_rate=3e-2, schedule="constant", warmup_fraction=0)
    zero = DeepSpeedEngineConfig(zero_stage=stage)
    engine = make_engine(model, settings, len(LENGTHS), zero, dist_info)

    def objective(model, batch):
        scores = sequence_scores(model, batch)
        return Loss((scores - 3.0).square().sum(), float(len(scores)))

    reports = train(engine, dist_info, range(len(LENGTHS)), objective)
    with engine.at_work():
        scores = [engine.compute(sequence_scores, batch) for batch in micro_batches(0)]
    engine.finish()
    return {"losses": [r.loss for r in reports], "scores": scores, "head": model.score.weight}


def sent_in_groups(dist_info):
    """What is sent with so small a limit that only some weights are together; and their size.

    DeepSpeed keeps small weights after a forward pass, so there is none before.
    """
    from training_core.engine import deepspeed_weights

    before = deepspeed_weights.GATHERED_BYTES
    deepspeed_weights.GATHERED_BYTES = GROUP_BYTES
    engine = engine_of(dist_info, 3)
    alive, sent = [], {}
    for name, weight in named_weights(engine.weights_to_send()):
        sent[name] = weight.clone()
        alive.append(sum(p.nbytes for p in engine._twin.parameters()))
    deepspeed_weights.GATHERED_BYTES = before
    whole = dict(tiny_llama().named_parameters())
    return {"sent": sent, "whole": whole, "alive": max(alive)}


def small_steps(dist_info):
    """Steps of ZeRO 0 in bfloat16 that are smaller than the distance of two weights."""
    from training_core.engine.deepspeed_engine import DeepSpeedEngine
    from training_core.engine.zero import Zero

    settings = {**SETTINGS, "learning_rate": 1e-6, "schedule": lambda _: 1.0}
    engine = DeepSpeedEngine(tiny_llama(torch.bfloat16), Zero(0), **settings, dist_info=dist_info)
    before = [master.clone() for master in engine.state_dict()["masters"]]
    train(engine, dist_info, range(len(LENGTHS)))
    return before, engine.state_dict()["masters"]


class Trap:
    """Unpickling it makes a folder."""

    def __init__(self, folder):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def forged(dist_info, stage, folder, world_size):
    """What becomes of loading shards of which one is forged: the error, and whether code ran."""
    engine = engine_of(dist_info, stage)
    train(engine, dist_info, range(1))
    engine.save_shards(folder / "shards")
    engine.load_state_dict({**engine.state_dict(), "world_size": world_size})
    found = {}
    for file in sorted((folder / "shards").rglob("*.pt")):
        whole, ran = file.read_bytes(), folder / f"ran-{file.name}"
        torch.save({**torch.load(file, weights_only=False), "extra": Trap(ran)}, file)
        try:
            engine.load_shards(folder / "shards", folder / "universal")
        except IntegrityError as error:
            found[file.name] = str(error), ran.exists()
        file.write_bytes(whole)
    return found


def on_two(dist_info, folder):
    runs = {stage: steps_in_two_halves(dist_info, stage, folder) for stage in STAGES}
    offloaded = steps_in_two_halves(
        dist_info, 3, folder / "offloaded", offload_optimizer=True, offload_parameters=True
    )
    return {
        "runs": runs,
        "offloaded": offloaded,
        "again": {s: resumed(dist_info, s, runs[s]["state"], folder) for s in (2, 3)},
        "overflow": {stage: overflow(dist_info, stage) for stage in (0, 2, 3)},
        "overflow in half": {s: overflow(dist_info, s, torch.bfloat16) for s in STAGES},
        "computed": {stage: computed(dist_info, stage) for stage in STAGES},
        "sent in groups": sent_in_groups(dist_info),
        "reward model": {stage: reward_model(dist_info, stage) for stage in (2, 3)},
        "small steps": small_steps(dist_info),
        # Last: a process in which DeepSpeed has once cut matrices cuts them for good.
        "parallel": steps_in_two_halves(dist_info, 2, folder / "parallel", tensor_parallel_size=2),
        "three": refusal(dist_info, tensor_parallel_size=2, num_heads=3),
    }


def on_one(dist_info, folder, states):
    again = {stage: resumed(dist_info, stage, state, folder) for stage, state in states.items()}
    cases = [(stage, world_size) for stage in (0, 2, 3) for world_size in (1, 2)]
    traps = {
        (stage, world_size): forged(dist_info, stage, folder / f"{stage}-{world_size}", world_size)
        for stage, world_size in cases
    }
    return {**again, "forged": traps}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("deepspeed")


@pytest.fixture(scope="module")
def plain():
    engine = engine_of(SINGLE_PROCESS, None)
    reports = train(engine, SINGLE_PROCESS, range(len(LENGTHS)))
    return {"reports": reports, "weights": weights_of(engine)}


@pytest.fixture(scope="module")
def two(folder):
    return together(2, folder / "two", on_two, folder)


@pytest.fixture(scope="module")
def one(folder, two):
    states = {stage: two[0]["runs"][stage]["state"] for stage in STAGES}
    return together(1, folder / "one", on_one, folder, states)[0]


def assert_same(found, expected, first=0):
    reports = zip(found["reports"], expected["reports"][first:], strict=True)
    for ours, theirs in reports:
        assert ours.step == theirs.step
        assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, abs=1e-5)
        assert ours.learning_rate == theirs.learning_rate
        assert ours.tokens == theirs.tokens
    for name, weight in expected["weights"].items():
        assert (found["weights"][name] - weight).abs().max() <= 1e-5, name


@pytest.mark.parametrize("stage", STAGES)
def test_zero_on_two_ranks_is_plain_torch_on_one(plain, two, stage):
    # Batches of 5, 3, 1 and 4 micro-batches: ZeRO-2 that took each for a whole batch would drop
    # all but the last (open-instruct#1498), and the third leaves one rank without any.
    for rank in two:
        assert_same(rank["runs"][stage], plain)
    assert min(report.grad_norm for report in plain["reports"]) > SETTINGS["max_grad_norm"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_model_computes_without_gradients_between_two_steps(two, stage):
    for rank in two:
        found = rank["computed"][stage]
        assert found["training goes on"]
        for ours, theirs in zip(found["ours"], found["theirs"], strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("case", [*STAGES, "in groups"])
def test_the_weights_that_are_sent_are_those_of_the_whole_model(two, case):
    for rank in two:
        found = rank["sent in groups"] if case == "in groups" else rank["computed"][case]
        assert [*found["sent"]] == [*found["whole"]]
        assert all(torch.equal(found["sent"][n], weight) for n, weight in found["whole"].items())


@pytest.mark.parametrize("stage", STAGES)
def test_the_first_rank_can_have_the_weights_to_save_them(two, stage):
    for number, rank in enumerate(two):
        found, whole = rank["computed"][stage]["first"], rank["computed"][stage]["whole"]
        assert not any(weight.numel() for weight in found["empty"].values())
        for seen in (found["saved"], found["finished"]):
            if number == 0 or stage < 3:
                assert all(torch.equal(seen[name], weight) for name, weight in whole.items())
            else:
                assert not any(weight.numel() for weight in seen.values())


def test_zero_3_gathers_no_more_at_once_than_a_group_of_weights(two):
    for rank in two:
        found = rank["sent in groups"]
        whole = sum(weight.nbytes for weight in found["whole"].values())
        assert 0 < found["alive"] <= GROUP_BYTES < whole / 5


def test_zero_3_trains_a_head_in_half_precision_and_computes_it_in_single(two):
    for rank in two:
        ours, theirs = rank["reward model"][3], rank["reward model"][2]
        # The weights of its head have 8 bits in the forward pass, and those of ZeRO 2 have 24.
        assert ours["losses"] == pytest.approx(theirs["losses"], rel=0.03)
        assert ours["losses"][-1] < 0.8 * ours["losses"][0]
        assert ours["head"].dtype == torch.bfloat16
        assert theirs["head"].dtype == torch.float32
        for found, expected in zip(ours["scores"], theirs["scores"], strict=True):
            torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
            assert found.dtype == torch.float32
        assert any((score != score.bfloat16()).any() for score in ours["scores"])


def test_offload_changes_nothing(plain, two):
    assert_same(two[0]["offloaded"], plain)


def test_matrices_that_two_ranks_share_are_trained_as_one(plain, two):
    for rank in two:
        assert_same(rank["parallel"], plain)  # tokens too: both ranks see the same data
        for name, weight in rank["parallel"]["weights"].items():
            assert torch.equal(rank["parallel"]["kept"][name], weight), name


def test_heads_that_cannot_be_shared_evenly_are_refused(two):
    assert "does not divide the model's num_attention_heads 3" in two[0]["three"]


@pytest.mark.parametrize("stage", STAGES)
def test_the_model_has_its_weights_when_the_engine_is_finished(two, stage):
    run = two[1]["runs"][stage]
    for name, weight in run["weights"].items():
        assert torch.equal(run["kept"][name], weight), name


@pytest.mark.parametrize("stage", [2, 3])
def test_a_resumed_run_on_as_many_ranks_goes_on_bit_for_bit(two, stage):
    for rank in two:
        again, run = rank["again"][stage], rank["runs"][stage]
        assert again["reports"] == run["reports"][HALF:]
        assert all(torch.equal(again["weights"][n], w) for n, w in run["weights"].items())


@pytest.mark.parametrize("stage", STAGES)
def test_what_two_ranks_saved_one_rank_resumes(plain, one, stage):
    assert_same(one[stage], plain, first=HALF)


@pytest.mark.parametrize("world_size", [1, 2])  # 2: the shards are converted first
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_forged_shard_is_refused_and_runs_no_code(one, stage, world_size):
    found = one["forged"][stage, world_size]
    assert len(found) == (1 if stage == 0 else 2)  # every file was tried
    for message, has_run in found.values():
        assert "holds something else than tensors and plain values" in message
        assert "(found posix.mkdir)" in message
        assert not has_run


@pytest.mark.parametrize(
    ("dtype", "stage"),
    [("overflow", 0), ("overflow", 2), ("overflow", 3), *(("overflow in half", s) for s in STAGES)],
)
def test_a_non_finite_gradient_leaves_the_weights_as_they_were(two, dtype, stage):
    message, before, after = two[0][dtype][stage]
    assert "the gradient norm is" in message
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_zero_0_adds_up_small_steps_in_single_precision(two):
    before, after = two[0]["small steps"]
    moved = torch.cat([(a - b).abs().flatten() for a, b in zip(after, before, strict=True)])
    # four steps of at most the learning rate; a bfloat16 weight of 0.02 is 1.2e-4 from the next
    assert 1e-6 < float(moved.mean()) < 4.1e-6
