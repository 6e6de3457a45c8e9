"""No prompt of the evaluation may be in data that a step trains on."""

import subprocess
import sys
from dataclasses import replace

import pytest

from flows.config.leak_guard_config import LeakGuardConfig
from flows.config.presets import ROOT, load_config
from flows.recipe.held_out_prompts import require_unseen_prompts, shared_prompts
from flows.recipe.trained_sources import trained_sources
from stages.files import write_jsonl
from training_core.errors import DataError

HELDOUT = {"name": "cafe", "split": "heldout", "size": 5, "seed": 9}


@pytest.fixture
def files(tmp_path):
    def write(name, *rows):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
        return {"name": "files", "path": str(tmp_path / f"{name}.jsonl")}

    return write


@pytest.mark.parametrize(
    ("block", "rows"),
    [
        ("rejection_sampling", [{"prompt": "one tea"}, {"prompt": "two tea"}]),
        ("preference_pairs", [{"prompt": "one tea"}, {"prompt": "two tea"}]),
        ("ppo", [{"prompt": "one tea"}, {"prompt": "two tea"}]),
        ("feedback", [{"prompt": "one tea"}, {"prompt": "two tea"}]),
        ("sft", [{"prompt": "one tea", "response": "a"}, {"prompt": "two tea", "response": "b"}]),
        (
            "reward_model",
            [{"prompt": p, "chosen": "a", "rejected": "b"} for p in ("one tea", "two tea")],
        ),
        ("kto", [{"prompt": p, "response": "a", "label": True} for p in ("one tea", "two tea")]),
    ],
)
def test_prompts_of_any_step_that_trains_are_found_and_named(files, block, rows):
    field = "data" if block in ("sft", "reward_model", "kto") else "prompts"
    preset = "tinystories" if block == "feedback" else "tiny"
    overrides = {
        block: {field: files("trained", {**rows[0], "prompt": "four tea"}, *rows)},
        "evaluation": {"prompts": files("judged", {"prompt": "two tea"}, {"prompt": "three tea"})},
    }
    (found,) = shared_prompts(load_config(preset, overrides))
    assert found.startswith(
        f"1 of 2 different prompts of evaluation.prompts are also in {block}.{field}, word for "
        "word; e.g. prompt 1 is in row 3: [('user', 'two tea')]"
    )


def test_a_prompt_that_was_answered_earlier_in_a_conversation_is_found(files):
    turns = ["one tea", "here", "and a pie", "sure"]
    roles = ["user", "assistant"] * 2
    conversation = [
        {"role": role, "content": text} for role, text in zip(roles, turns, strict=True)
    ]
    overrides = {
        "sft": {"data": files("trained", {"messages": conversation})},
        "evaluation": {"prompts": files("judged", {"prompt": "one tea"}, {"prompt": "and a pie"})},
    }
    (found,) = shared_prompts(load_config("tiny", overrides))
    assert "1 of 2 different prompts" in found  # the second was only asked after the first answer


def test_each_part_of_a_mixture_is_looked_at(files):
    parts = [{"data": {"name": "cafe", "size": 3}}, {"data": files("part", {"prompt": "one tea"})}]
    overrides = {
        "ppo": {"prompts": {"name": "mixed", "parts": parts}},
        "evaluation": {"prompts": files("judged", {"prompt": "one tea"})},
    }
    (found,) = shared_prompts(load_config("tiny", overrides))
    assert "are also in ppo.prompts.parts.1, word for word" in found


def test_held_out_prompts_of_ppo_are_compared_with_what_ppo_trains_on(files):
    prompts = [
        {"label": "small", "data": files("small", {"prompt": "three tea"})},
        {"label": "large", "data": files("large", {"prompt": "two tea"}, {"prompt": "four tea"})},
    ]
    other = files("other", {"prompt": "four tea", "response": "a"})
    trained = files("trained", {"prompt": "one tea"}, {"prompt": "two tea"})
    overrides = {
        "sft": {"data": other},  # trained on before PPO, which is what PPO starts from
        "ppo": {"prompts": trained, "evaluation": {"every": 5, "prompts": prompts}},
    }
    (found,) = shared_prompts(load_config("tiny", overrides))
    assert found.startswith(
        "1 of 2 different prompts of ppo.evaluation.prompts.1 are also in ppo.prompts, word for "
        "word; e.g. prompt 1 is in row 2: [('user', 'two tea')]"
    )
    overrides["ppo"]["evaluation"]["exclude"] = trained
    assert shared_prompts(load_config("tiny", overrides)) == []


def test_weights_are_not_judged_by_the_prompts_that_chose_them(files):
    judged = files("judged", {"prompt": "one tea"}, {"prompt": "two tea"}, {"prompt": "a pie"})
    prompts = [
        {"label": "small", "data": files("small", {"prompt": "three tea"})},
        {"label": "large", "data": files("large", {"prompt": "five tea"}, {"prompt": "two tea"})},
    ]
    ppo = {"every": 5, "prompts": prompts}
    overrides = {"ppo": {"evaluation": ppo}, "evaluation": {"prompts": judged}}
    (found,) = shared_prompts(load_config("tiny", overrides))
    assert found.startswith(
        "1 of 3 different prompts of evaluation.prompts are also in ppo.evaluation.prompts.1 (by "
        "which the weights are chosen), word for word; e.g. prompt 2 is in row 2: "
        "[('user', 'two tea')]"
    )
    for left_out in (ppo, overrides["evaluation"]):
        left_out["exclude"] = prompts[1]["data"] if left_out is not ppo else judged
        assert shared_prompts(load_config("tiny", overrides)) == []
        del left_out["exclude"]
    ppo["export"] = "last"  # nothing is chosen by the held-out rewards
    assert shared_prompts(load_config("tiny", overrides)) == []


def test_the_error_names_every_block_and_what_to_do():
    overrides = {"ppo": {"prompts": HELDOUT}, "evaluation": {"prompts": HELDOUT}}
    with pytest.raises(DataError) as caught:
        require_unseen_prompts(load_config("tiny", overrides))
    first, shared, last = str(caught.value).splitlines()
    assert first == "the evaluation would judge weights by prompts that trained or chose them:"
    assert "5 of 5 different prompts of evaluation.prompts are also in ppo.prompts" in shared
    assert last.endswith("or leave the shared ones out with `evaluation.exclude`")


def test_excluded_prompts_are_not_judged_and_so_may_be_trained_on(files):
    trained = files("trained", {"prompt": "one tea"}, {"prompt": "two tea"})
    judged = files("judged", {"prompt": "two tea"}, {"prompt": "three tea"})
    overrides = {"ppo": {"prompts": trained}, "evaluation": {"prompts": judged, "exclude": trained}}
    require_unseen_prompts(load_config("tiny", overrides))
    overrides["evaluation"]["exclude"] = judged
    with pytest.raises(DataError, match="found all 2 in it; choose other prompts"):
        require_unseen_prompts(load_config("tiny", overrides))


def test_training_data_that_cannot_be_read_is_named(files):
    overrides = {"ppo": {"prompts": files("trained", {"x": 1})}}
    with pytest.raises(DataError, match=r"^ppo\.prompts: .*cannot be read as prompts"):
        require_unseen_prompts(load_config("tiny", overrides))


def test_a_plan_compares_only_what_it_need_not_download():
    hub = {"name": "hub", "repo": "nobody/nothing", "revision": "a" * 40}
    overrides = {"ppo": {"prompts": HELDOUT}, "evaluation": {"prompts": HELDOUT}}
    config = load_config("tiny", {**overrides, "preference_pairs": {"prompts": hub}})
    (found,) = shared_prompts(config, downloads=False)
    assert "also in ppo.prompts" in found
    with pytest.raises(DataError, match=r"^preference_pairs\.prompts: .*nobody/nothing"):
        shared_prompts(config)
    judged = load_config("tiny", {**overrides, "evaluation": {"prompts": hub}})
    assert shared_prompts(judged, downloads=False) == []


def test_tiny_judges_only_prompts_that_no_step_trains_on():
    require_unseen_prompts(load_config("tiny"))


def test_tinystories_leaves_out_the_sentences_that_begin_training_stories_too(shared_data):
    config = load_config("tinystories", {"data_root": str(shared_data)})
    require_unseen_prompts(config)
    everything = config.evaluation.model_copy(update={"exclude": None})
    same_only = LeakGuardConfig(similarity=None)
    changes = {"evaluation": everything, "leak_guard": same_only}
    found = shared_prompts(config.model_copy(update=changes))
    assert [text.partition(", word")[0].rpartition(" ")[2] for text in found] == [
        "sft.data", "feedback.prompts", "rejection_sampling.prompts", "preference_pairs.prompts",
        "ppo.prompts",
    ]  # fmt: skip


def test_the_check_loads_no_torch(tmp_path):
    write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "one tea"}])
    code = f"""
import sys
from dataclasses import replace
from flows.config.presets import load_config
from flows.recipe.held_out_prompts import require_unseen_prompts
rows = {{"name": "files", "path": "{tmp_path}/rows.jsonl"}}
require_unseen_prompts(load_config("tiny", {{"ppo": {{"prompts": rows}}}}))
assert "datasets" in sys.modules
print([name for name in ("torch", "transformers") if name in sys.modules])
"""
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[-1] == "[]"


LONG = "please bring {} cups of coffee and a large cake for everyone at the table by the window"
NEAR = {"similarity": 0.8, "max_near_share": 0.0}


def test_near_duplicates_are_named_with_their_rows_and_similarity(files):
    rows = [{"prompt": LONG.format(n)} for n in ("four", "nine")]
    overrides = {
        "leak_guard": NEAR,
        "ppo": {"prompts": files("trained", {"prompt": "a pie"}, rows[1])},
        "evaluation": {"prompts": files("judged", {"prompt": "one tea"}, rows[0])},
    }
    (found,) = shared_prompts(load_config("tiny", overrides))
    # each has 84 sequences, of which "four" and "nine" are in 8: 76 of 92 are shared
    assert found == (
        "1 of 2 different prompts of evaluation.prompts are nearly the same in ppo.prompts; e.g. "
        "prompt 2 and row 2 (0.83) (limits: leak_guard.similarity, leak_guard.max_near_share)"
    )
    overrides["leak_guard"] = {"similarity": None}
    assert shared_prompts(load_config("tiny", overrides)) == []


def test_a_share_below_the_limit_is_only_logged(files, caplog):
    same = {"prompt": "one tea"}
    judged = files("judged", same, {"prompt": "a pie"}, {"prompt": LONG.format("four")})
    overrides = {
        "ppo": {"prompts": files("trained", same, {"prompt": LONG.format("nine")})},
        "evaluation": {"prompts": judged},
        "leak_guard": {"max_same_share": 0.4, "similarity": 0.8, "max_near_share": 0.4},
    }
    with caplog.at_level("WARNING", "ratchet.flows"):
        assert shared_prompts(load_config("tiny", overrides)) == []
    assert len([r for r in caplog.records if "within the limits of leak_guard" in r.message]) == 2
    overrides["leak_guard"]["max_same_share"] = 0.3  # one of three is more
    (found,) = shared_prompts(load_config("tiny", overrides))
    assert "word for word" in found


def test_what_a_given_model_was_trained_on_counts_and_may_be_gone(files, caplog):
    config = load_config("tiny", {"evaluation": {"prompts": files("judged", {"prompt": "1 tea"})}})
    ppo = load_config("tiny", {"ppo": {"prompts": files("before", {"prompt": "1 tea"})}})
    (before,) = (s for s in trained_sources(ppo) if s.name == "ppo.prompts")
    inherited = replace(before, name="old.policy/3, step ppo: prompts", is_inherited=True)
    with pytest.raises(DataError, match=r"also in old\.policy/3, step ppo: prompts, word for word"):
        require_unseen_prompts(config, [inherited])
    gone = replace(inherited, data=inherited.data.model_copy(update={"path": "/no/such.jsonl"}))
    require_unseen_prompts(config, [gone])
    assert "the data of old.policy/3, step ppo: prompts is not compared" in caplog.text
