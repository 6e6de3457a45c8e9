"""Real public datasets, each as its kind, and tokenised with a real tokenizer."""

import logging
from itertools import groupby

import pytest

from stages.batches.encoding import (
    encode_demonstrations,
    encode_pairs,
    encode_solutions,
    encode_texts,
    encode_unpaired,
)
from stages.configs.data_config import FileDataConfig
from stages.datasets import (
    demonstrations,
    preferences,
    prompts,
    solutions,
    texts,
    unpaired_responses,
)
from training_core.data.templates import CHAT_TEMPLATES, template_from_prompt

LONG = 10**6


@pytest.fixture
def real(shared_data):
    """A real tokenizer; it writes a word together with the space after it."""
    from training_core.models.hub import load_tokenizer

    tokenizer = load_tokenizer(shared_data / "models/TinyStories-656K")
    tokenizer.chat_template = CHAT_TEMPLATES["chatml"]
    return tokenizer


def source(shared_data, name, **settings):
    return FileDataConfig(path=str(shared_data / f"{name}.jsonl.gz"), **settings)


@pytest.mark.parametrize(
    ("load", "name", "rows"),
    [
        (demonstrations, "instruction/p3_t0_short.test", 500),
        (demonstrations, "instruction/taskmaster_tm4_coffee.test", 500),
        (demonstrations, "instruction/rasbt_instructions.test", 100),
        (demonstrations, "instruction/oasst_en100_best_path", 100),
        (demonstrations, "text/tinystories_v2_gpt4_first_sentence.test", 150),
        (texts, "text/tinystories_v2_gpt4.test", 150),
        (texts, "reward/vader_human_rated_sentences", 23703),
        (preferences, "preference/hh_rlhf_harmless_base.test", 300),
        (preferences, "preference/taskmaster_tm4_coffee_pairs", 617),
        (preferences, "preference/gsm8k_model_solutions_pairs", 2426),
        (preferences, "preference/rasbt_polite_impolite.test", 100),
        (unpaired_responses, "reward/taskmaster_tm4_coffee_unpaired", 3222),
        (unpaired_responses, "reward/gsm8k_model_solutions_unpaired", 5276),
        (unpaired_responses, "preference/rasbt_polite_impolite.test", 200),
        (solutions, "process/bigbench_mistake", 2186),
        (prompts, "verifiable/gsm8k.test", 1319),
        (prompts, "verifiable/humaneval", 164),
    ],
)
def test_every_row_of_a_real_dataset_is_recognised(shared_data, load, name, rows):
    assert len(load(source(shared_data, name))) == rows


def test_labels_are_as_often_what_the_sources_say(shared_data):
    gsm8k = unpaired_responses(source(shared_data, "reward/gsm8k_model_solutions_unpaired"))
    assert sum(r.is_desirable for r in gsm8k) == 2001
    coffee = source(shared_data, "reward/taskmaster_tm4_coffee_unpaired")
    assert unpaired_responses(coffee, threshold=0.5) == unpaired_responses(coffee)
    mistakes = solutions(source(shared_data, "process/bigbench_mistake"))
    assert sum(0.0 not in s.labels for s in mistakes) == 478  # traces without a mistake


def test_raw_hh_rlhf_is_the_converted_one(shared_data, caplog):
    with caplog.at_level(logging.WARNING):
        raw = preferences(
            source(shared_data, "preference/hh_rlhf_harmless_base.raw200", skip_bad_rows=True)
        )
    assert len(raw) >= 187  # of 2,312 pairs 13 are bad; here are 200 of them
    converted = [
        pair
        for part in ("train", "test")
        for pair in preferences(source(shared_data, f"preference/hh_rlhf_harmless_base.{part}"))
    ]
    known = {repr((p.prompt, p.chosen, p.rejected)) for p in converted}
    short = [p for p in raw if repr((p.prompt, p.chosen, p.rejected)) in known]
    # the converted set has the 1,911 of 2,299 pairs that are short: 0.83 of them
    assert len(short) / len(raw) == pytest.approx(0.83, abs=0.1)


@pytest.mark.parametrize("template", ["chatml", "zephyr", "roles", "prompt"])
@pytest.mark.parametrize("name", ["taskmaster_tm4_coffee.test", "oasst_en100_best_path"])
def test_what_is_trained_of_a_real_conversation_is_what_the_assistant_said(
    shared_data, real, name, template
):
    """Family 15: decode the masked span and compare it with the answers."""
    prompted = template_from_prompt("User: {}\nAssistant: ")
    real.chat_template = {**CHAT_TEMPLATES, "prompt": prompted}[template]
    rows = demonstrations(source(shared_data, f"instruction/{name}"))
    examples = encode_demonstrations(real, rows, max_tokens=LONG)
    for row, example in zip(rows, examples, strict=True):
        said = [m["content"] for m in row.prompt if m["role"] == "assistant"] + [row.response]
        pairs = list(zip(example.input_ids, example.loss_mask, strict=True))
        runs = [[i for i, _ in run] for m, run in groupby(pairs, key=lambda p: p[1]) if m]
        trained = "".join(real.decode(run) for run in runs).replace(real.eos_token, "")
        known = "".join(real.decode(real(s, add_special_tokens=False).input_ids) for s in said)
        assert "".join(trained.split()) == "".join(known.split())


def test_real_rows_of_every_kind_become_tokens(shared_data, real):
    pairs = encode_pairs(
        real,
        preferences(source(shared_data, "preference/rasbt_polite_impolite.test")),
        max_tokens=LONG,
    )
    rated = encode_unpaired(
        real,
        unpaired_responses(source(shared_data, "reward/taskmaster_tm4_coffee_unpaired", limit=50)),
        max_tokens=LONG,
    )
    steps = encode_solutions(
        real, solutions(source(shared_data, "process/bigbench_mistake", limit=50)), max_tokens=LONG
    )
    stories = texts(source(shared_data, "text/tinystories_v2_gpt4.test"))
    cut = encode_texts(real, stories, max_tokens=64)
    assert (len(pairs), len(rated), len(steps)) == (100, 50, 50)
    for _, each in steps:
        assert len(each.step_ends) == len(each.labels)
        assert each.step_ends[-1] == len(each.example) - 1
    whole = encode_texts(real, stories, max_tokens=LONG)
    assert sum(sum(e.loss_mask) for e in cut) == sum(sum(e.loss_mask) for e in whole)
    assert max(len(e) for e in cut) == 64
