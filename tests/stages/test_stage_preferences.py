"""Every preference loss, KTO, process rewards and distillation, each as a stage, on the café.

One small SFT policy is the start of all; each test asks for a held-out number that would be wrong
if the stage did nothing.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

from stages import dpo, sft
from stages.attempt import Attempt
from stages.batches.encoding import encode_demonstrations
from stages.batches.micro_batches import Examples
from stages.configs.distillation_config import DistillationConfig
from stages.configs.dpo_config import DpoConfig
from stages.configs.sft_config import SftConfig
from stages.contract import Context
from stages.datasets import Demonstration
from stages.files import read_jsonl, write_jsonl
from stages.runtime.manifest import Manifest
from stages.runtime.metric_files import FileSink
from stages.runtime.store import Store
from stages.training.heldout_metrics import mean_loss
from training_core.data import cafe
from training_core.models import hub
from training_core.models.offloading import FrozenWeights

CPU = torch.device("cpu")
HELDOUT = {"name": "cafe", "split": "heldout", "size": 48}
PAIRS = {"name": "cafe", "size": 160, "seed": 1}
SFT = {
    "base": {
        "name": "scratch",
        "hidden_size": 32,
        "num_layers": 1,
        "num_heads": 2,
        "intermediate_size": 64,
    },
    "data": {"name": "cafe", "size": 300},
    "chat_template": "roles",
}


def training(epochs, learning_rate, **settings):
    return {
        "epochs": epochs,
        "batch_size": 16,
        "max_tokens": 64,
        "optimizer": {"learning_rate": learning_rate},
        **settings,
    }


@dataclass(frozen=True)
class Start:
    store: Store
    sft: Manifest

    @property
    def twins(self) -> dict[str, Manifest]:
        return {"policy": self.sft, "reference": self.sft}


@pytest.fixture(scope="module")
def start(finish, tmp_path_factory) -> Start:
    store = Store(tmp_path_factory.mktemp("preferences"))
    return Start(store, finish(store, "sft", {**SFT, "training": training(3, 1e-2)}))


LOSSES = {
    "dpo": {},
    "robust": {},
    "ipo": {},
    "ipo_summed": {},
    "hinge": {},
    "simpo": {},
    "orpo": {"beta": 1.0},
    "dpo_norm": {},
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_preference_loss_raises_the_heldout_margin(start, finish, name):
    config = {
        "loss": {"name": name, **LOSSES[name]},
        "data": PAIRS,
        "eval_data": HELDOUT,
        "training": training(2, 3e-3),
    }
    metrics = finish(start.store, "dpo", config, start.twins).metrics
    assert metrics["heldout_margin"] > metrics["heldout_margin_before"]
    assert metrics["heldout_accuracy"] > max(0.6, metrics["heldout_accuracy_before"])


def test_a_loss_without_a_reference_runs_without_one_and_another_says_that_it_needs_it(
    start, finish, write_request, run_here
):
    config = {"loss": {"name": "simpo"}, "data": PAIRS, "training": training(1, 1e-3)}
    finish(start.store, "dpo", config, {"policy": start.sft})
    needy = {"data": PAIRS, "training": training(1, 1e-3)}
    request = write_request(start.store, "dpo", needy, {"policy": start.sft})
    assert run_here(request) == 20
    assert "needs the input 'reference'" in request.with_name("error.json").read_text()


def test_the_nll_term_keeps_the_chosen_responses_likely(start, finish):
    def chosen_nll(coef):
        config = {"data": PAIRS, "nll_coef": coef, "training": training(2, 3e-3)}
        manifest = finish(start.store, "dpo", config, start.twins)
        lines = (start.store.attempt_of(manifest).metrics).read_text()
        return json.loads(lines.splitlines()[-1])["metrics"]["dpo/nll_chosen"]

    assert chosen_nll(1.0) < chosen_nll(0.0)


def test_reference_logprobs_are_computed_once_and_found_by_content(start, finish, tmp_path):
    finish(start.store, "dpo", {"data": PAIRS, "training": training(1, 1e-3)}, start.twins)
    cache = start.store.root / "cache"
    before = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    finish(start.store, "dpo", {"data": PAIRS, "training": training(1, 2e-3)}, start.twins)
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == before
    others = {**PAIRS, "seed": 5}
    finish(start.store, "dpo", {"data": others, "training": training(1, 1e-3)}, start.twins)
    assert len(list(cache.iterdir())) == len(before) + 1


def test_wrong_reference_logprobs_are_noticed_before_the_first_step(
    start, finish, write_request, run_here
):
    """The DPO loss must start at ln 2 where policy and reference are one model."""
    rows = {**PAIRS, "seed": 77}
    finish(start.store, "dpo", {"data": rows, "training": training(1, 1e-3)}, start.twins)
    newest = max((start.store.root / "cache").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    kept = load_file(newest)["sums"].clone()
    kept[:, 0] -= 1.0
    from safetensors.torch import save_file

    save_file({"sums": kept}, newest)
    request = write_request(
        start.store, "dpo", {"data": rows, "training": training(1, 4e-3)}, start.twins
    )
    assert run_here(request) == 32
    assert "must start at ln 2" in request.with_name("error.json").read_text()


@pytest.mark.parametrize("bits", [32, 4])
def test_lora_dpo_starts_at_ln_2_and_exports_whole_weights(start, finish, bits):
    config = {
        "data": PAIRS,
        "eval_data": HELDOUT,
        "model": {"lora": {"rank": 8, "load_in_4bit": bits == 4}},
        "training": training(2, 1e-2),
    }
    manifest = finish(start.store, "dpo", config, start.twins)
    curves = start.store.attempt_of(manifest).metrics
    first = json.loads(curves.read_text().splitlines()[0])["metrics"]
    assert first["dpo/loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert manifest.metrics["heldout_margin"] > manifest.metrics["heldout_margin_before"]
    whole = load_file(start.store.artifact_dir(manifest) / "model.safetensors")
    before = load_file(start.store.artifact_dir(start.sft) / "model.safetensors")
    assert whole.keys() == before.keys()
    assert any(not whole[name].equal(before[name]) for name in whole)


def test_sft_on_sampled_responses_trains_only_these(start, tmp_path):
    """The earlier answers in the prompts were neither sampled nor selected."""
    talk = [
        {"role": "user", "content": "one tea please"},
        {"role": "assistant", "content": "no no no no"},
        {"role": "user", "content": "two cake please"},
    ]
    (tmp_path / "dataset").mkdir()
    write_jsonl(tmp_path / "dataset/data.jsonl", [{"prompt": talk, "response": "two cake ."}])
    policy = start.store.artifact_dir(start.sft)
    settings = {**training(1, 1e-3), "unknown_limit": 1.0}
    config = SftConfig.model_validate({"training": settings})
    assert config.train_on == "last_turn"
    attempt = Attempt(tmp_path)
    inputs = {"policy": policy, "dataset": tmp_path / "dataset"}
    sft.run(config, inputs, Context(attempt, FileSink(attempt, "sft")))
    model, tokenizer = hub.load_policy(policy), hub.load_tokenizer(policy)
    row = Demonstration(tuple(talk), "two cake .")
    losses = {
        turns: mean_loss(
            FrozenWeights(model, CPU),
            Examples(
                encode_demonstrations(tokenizer, [row], max_tokens=64, train_on=turns), 0, CPU
            ),
            budget_tokens=64,
        )
        for turns in ("last_turn", "every_turn")
    }
    first = read_jsonl(attempt.metrics)[0]["metrics"]["sft/loss"]
    assert first == pytest.approx(losses["last_turn"], abs=1e-4)
    assert abs(losses["every_turn"] - losses["last_turn"]) > 0.1


def test_sft_on_given_conversations_trains_every_turn_unless_it_is_told_otherwise():
    given = SftConfig.model_validate({"data": PAIRS})
    assert given.train_on == "every_turn"
    assert SftConfig.model_validate({"train_on": "every_turn"}).train_on == "every_turn"
    assert SftConfig.model_validate({"train_on": None}).train_on == "last_turn"


def dropout_weights(finish, folder, *, seed):
    """Train with the dropout of an adapter, in a store of its own."""
    model = {"lora": {"rank": 4, "dropout": 0.3}}
    config = {**SFT, "model": model, "training": training(1, 1e-2), "seed": seed}
    manifest = finish(Store(folder), "sft", config)
    return (Store(folder).artifact_dir(manifest) / "model.safetensors").read_bytes()


def test_two_runs_of_one_key_with_dropout_give_the_same_bytes(finish, tmp_path):
    torch.manual_seed(1)
    one = dropout_weights(finish, tmp_path / "a", seed=3)
    torch.manual_seed(2)  # what a process did before the stage does not matter
    assert dropout_weights(finish, tmp_path / "b", seed=3) == one
    assert dropout_weights(finish, tmp_path / "c", seed=4) != one


@pytest.fixture(scope="module")
def gpt2(start, tmp_path_factory) -> Path:
    """A policy with dropout 0.1 in its layers, as GPT-2 has by default."""
    tokenizer = hub.load_tokenizer(start.store.artifact_dir(start.sft))
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64}
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, **ids))
    assert model.config.resid_pdrop == 0.1
    folder = tmp_path_factory.mktemp("gpt2")
    hub.save(model, tokenizer, folder)
    return folder


def first_loss(gpt2, folder, **model):
    data = {"data": PAIRS, "training": training(1, 1e-3), "model": model}
    config = DpoConfig.model_validate({**data, "loss": {"name": "dpo", "beta": 1.0}})
    folder.mkdir()
    attempt = Attempt(folder)
    context = Context(attempt, FileSink(attempt, "dpo"))
    torch.manual_seed(0)
    dpo.run(config, {"policy": gpt2, "reference": gpt2}, context)
    saved = hub.load_policy(attempt.artifact)
    assert saved.config.resid_pdrop == 0.1  # the artifact keeps it
    return read_jsonl(attempt.metrics)[0]["metrics"]["dpo/loss"]


def test_the_first_dpo_loss_of_a_model_with_dropout_is_ln_2(gpt2, tmp_path):
    assert first_loss(gpt2, tmp_path / "off") == pytest.approx(math.log(2), abs=1e-5)
    with_dropout = first_loss(gpt2, tmp_path / "on", dropout=True)
    assert abs(with_dropout - math.log(2)) > 1e-3


@pytest.mark.parametrize("is_desirable", [True, False])
def test_kto_refuses_rows_of_one_label(start, write_request, run_here, tmp_path, is_desirable):
    rows = [{"prompt": "one tea please", "completion": "one tea .", "label": is_desirable}] * 4
    write_jsonl(tmp_path / "rows.jsonl", rows)
    data = {"name": "files", "path": str(tmp_path / "rows.jsonl")}
    request = write_request(start.store, "kto", {"data": data}, start.twins)
    assert run_here(request) == 20
    error = request.with_name("error.json").read_text()
    kind = "desirable" if is_desirable else "undesirable"
    assert f"all 4 responses are {kind}, and KTO needs both kinds" in error


def test_kto_refuses_a_score_that_is_no_number(start, write_request, run_here, tmp_path):
    rows = [{"prompt": "one tea", "completion": "yes", "score": s} for s in ("1", "nan", "0")]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    data = {"name": "files", "path": str(tmp_path / "rows.jsonl")}
    config = {"data": data, "threshold": 0.5}
    request = write_request(start.store, "kto", config, start.twins)
    assert run_here(request) == 20
    error = request.with_name("error.json").read_text()
    assert "row 2, field 'score': expected a finite number, found 'nan'" in error


def test_kto_raises_the_margin_between_good_and_bad(start, finish):
    config = {
        "data": PAIRS,  # each pair is two ratings
        "eval_data": HELDOUT,
        "training": training(2, 3e-3),
    }
    manifest = finish(start.store, "kto", config, start.twins)
    assert manifest.metrics["desirable_fraction"] == 0.5
    assert manifest.metrics["heldout_margin_before"] == pytest.approx(0, abs=1e-4)
    assert manifest.metrics["heldout_margin"] > 0.05


@pytest.fixture(scope="module")
def solutions(tmp_path_factory) -> Path:
    """Orders repeated dish by dish; a step that serves what was not ordered is wrong."""
    path = tmp_path_factory.mktemp("solutions") / "solutions.jsonl"
    rows = cafe.rows("demonstrations", split="train", size=160, seed=5)
    with path.open("w") as file:
        for number, row in enumerate(rows):
            step = "two tea" if number % 2 else "two cake"
            labels = [True, bool(number % 2)]
            file.write(
                json.dumps(
                    {
                        "prompt": row["messages"][0]["content"],
                        "completions": ["here are", step],
                        "labels": labels,
                    }
                )
                + "\n"
            )
    return path


def test_a_process_reward_model_learns_which_steps_are_right(start, finish, solutions):
    config = {
        "data": {"name": "files", "path": str(solutions)},
        "heldout_fraction": 0.2,
        "training": training(4, 1e-2),
    }
    manifest = finish(start.store, "process_reward", config, {"policy": start.sft})
    # Of two steps the first is always right and the second every other time: 3 of 4, ± the
    # standard error of the 32 solutions held out, sqrt(1/4 / 32) / 2 = 0.044, twice.
    assert manifest.metrics["heldout_majority"] == pytest.approx(0.75, abs=0.09)
    assert manifest.metrics["heldout_accuracy"] > 0.95
    assert manifest.kind == "process_reward_model"

    from transformers import AutoModelForTokenClassification

    model = AutoModelForTokenClassification.from_pretrained(start.store.artifact_dir(manifest))
    assert model.config.id2label == {0: "wrong", 1: "right"}


@pytest.fixture(scope="module")
def teacher(start, finish) -> Manifest:
    taught = {"data": PAIRS, "training": training(2, 5e-3)}
    return finish(start.store, "dpo", taught, start.twins)


@pytest.mark.parametrize(
    "settings",
    [
        {"divergence": {"name": "forward_kl"}},
        {"divergence": {"name": "reverse_kl"}, "nll_coef": 0.1},
        {
            "divergence": {"name": "jsd"},
            "on_policy_fraction": 0.5,
            "rollouts": {"engine": "transformers", "max_response_tokens": 16, "max_tokens": 64},
        },
    ],
    ids=["forward_kl", "reverse_kl", "on_policy_jsd"],
)
def test_distillation_brings_the_student_nearer_to_its_teacher(start, finish, teacher, settings):
    config = {
        **settings,
        "data": {"name": "cafe", "size": 160, "seed": 9},
        "eval_data": HELDOUT,
        "training": training(1, 3e-3),
    }
    parents = {"policy": start.sft, "teacher": teacher}
    metrics = finish(start.store, "distillation", config, parents).metrics
    assert metrics["heldout_divergence"] < 0.7 * metrics["heldout_divergence_before"]


def test_a_student_is_not_asked_to_imitate_itself():
    with pytest.raises(ValidationError, match="nll_coef is the cross-entropy of the data"):
        DistillationConfig.model_validate({"nll_coef": 0.1, "on_policy_fraction": 0.5})


def test_a_prompt_without_room_for_a_response_is_found_before_the_first_step(
    start, write_request, run_here
):
    config = {
        "data": {"name": "cafe", "size": 16},
        "on_policy_fraction": 0.5,
        "rollouts": {"engine": "transformers", "max_response_tokens": 16, "max_tokens": 20},
        "training": training(1, 3e-3),
    }
    parents = {"policy": start.sft, "teacher": start.sft}
    request = write_request(start.store, "distillation", config, parents)
    assert run_here(request) == 20
    assert "raise rollouts.max_tokens" in request.with_name("error.json").read_text()
