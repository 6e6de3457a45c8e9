"""Names of flow runs."""

from __future__ import annotations

import pytest
from prefect.utilities.names import generate_slug

from flows.recipe.run_name import describe, is_generated


@pytest.mark.parametrize(
    ("parameters", "fields", "name"),
    [
        ({"preset": "tiny", "overrides": {}, "force": []}, ("preset",), "tiny"),
        ({"preset": "tiny", "overrides": {"sft": {"data": {}}}}, ("preset",), "tiny"),
        (
            {"preset": "tiny", "overrides": {"ppo": {"kl_coef": 0.1}}},
            ("preset",),
            "tiny · ppo.kl_coef=0.1",
        ),
        (
            {"preset": "tiny", "overrides": {"sft": dict(zip("abcde", range(5), strict=True))}},
            ("preset",),
            "tiny · sft.a=0 · sft.b=1 · sft.c=2 · 2 more",
        ),
        (
            {"preset": "tiny", "force": ["ppo", "evaluation"]},
            ("preset",),
            "tiny · force ppo,evaluation",
        ),
        ({"preset": "tiny", "step": "sft", "force": True}, ("preset", "step"), "tiny sft · force"),
        (
            {"preset": "tiny", "overrides": {"sft": {"eval_data": None}, "dpo": {}}},
            ("preset",),
            "tiny · sft.eval_data=null",
        ),
        (
            {"preset": "tiny", "overrides": {"seed": 1}, "changes": ["ppo.steps=9", None]},
            ("preset",),
            "tiny · seed=1 · ppo.steps=9",
        ),
        (
            {"preset": "tiny", "changes": "ppo=~", "force": "sft"},
            ("preset",),
            "tiny · ppo=~ · force sft",
        ),
        ({"preset": "x" * 200}, ("preset",), "x" * 119 + "…"),
    ],
)
def test_a_run_is_named_by_what_is_special_about_it(parameters, fields, name):
    assert describe(parameters, fields) == name


def test_names_that_prefect_makes_up_are_told_from_those_that_people_type():
    assert all(is_generated(generate_slug(2)) for _ in range(300))
    by_the_form = ("sigma4-kiuic", "pi731-canis-majoris-warp", "omega2-vega-a")
    without_number = ("gamma-aguateca", "beta-canis-majoris-warp", "omega-vega")
    for offered in by_the_form + without_number:
        assert is_generated(offered)
    for typed in (
        "beta-test",
        "gamma-ray",
        "lambda2",
        "my-run",
        "tiny · ppo.kl_coef=0.1",
        "before the holidays",
        "ppo-2",
        "otter",
    ):
        assert not is_generated(typed)
