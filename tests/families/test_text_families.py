"""Silent bugs between text and token ids, one test per family that had no guard yet."""

import pytest
from tokenizers.processors import TemplateProcessing

from stages.batches.encoding import (
    encode_demonstrations,
    encode_pairs,
    encode_solutions,
    encode_texts,
    encode_unpaired,
)
from stages.datasets import Demonstration, Preference, Solution, UnpairedResponse
from training_core.data.chat import encode_prompt
from training_core.data.templates import CHAT_TEMPLATES, template_from_prompt
from training_core.models.scratch import make_tokenizer

TEMPLATES = {**CHAT_TEMPLATES, "prompt": template_from_prompt("User: {}\nAssistant: ")}
ASK = ({"role": "user", "content": "two tea"},)
TALK = (*ASK, {"role": "assistant", "content": "here"}, {"role": "user", "content": "one cake"})


def eager_tokenizer(template):
    """Puts a bos token before every text by itself, as Llama's tokenizers do."""
    made = make_tokenizer(["two tea one cake here you are . User: Assistant:"], template)
    bos = (made.bos_token, made.bos_token_id)
    made.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{bos[0]} $A", special_tokens=[bos]
    )
    assert made("two tea").input_ids[0] == bos[1]
    return made


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_no_stage_sees_a_text_that_begins_with_two_bos_tokens(name):
    """Family 14: the template adds one and the tokenizer another, for every template and stage."""
    tokenizer = eager_tokenizer(TEMPLATES[name])
    settings = {"max_tokens": 99}
    encoded = {
        "sft": encode_demonstrations(
            tokenizer, [Demonstration(TALK, "here you are")], train_on="last_turn", **settings
        ),
        "pretraining": encode_texts(tokenizer, ["two tea", "<s> two tea"], **settings),
        "pairs": [
            side
            for pair in encode_pairs(tokenizer, [Preference(ASK, "here", "cake")], **settings)
            for side in (pair.chosen, pair.rejected)
        ],
        "ratings": [
            row.example
            for row in encode_unpaired(tokenizer, [UnpairedResponse(ASK, "here", True)], **settings)
        ],
        "solutions": [
            solution.example
            for prompt in (ASK, ())
            for _, solution in encode_solutions(
                tokenizer, [Solution(prompt, ("two", "tea"), (1.0, 0.0))], **settings
            )
        ],
        "sampling": [encode_prompt(tokenizer, "1", ASK)],
    }
    for stage, rows in encoded.items():
        assert rows
        for row in rows:
            begins = row.input_ids.count(tokenizer.bos_token_id)
            if "bos_token" in TEMPLATES[name] or stage == "pretraining":
                assert row.input_ids[0] == tokenizer.bos_token_id, stage
                assert begins == 1, stage
            else:
                assert begins <= 1, stage
