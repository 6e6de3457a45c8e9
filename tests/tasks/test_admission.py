"""A policy is only optimised for a reward model that beats its baselines."""

from __future__ import annotations

import pytest

from stages.configs.admission_config import AdmissionConfig
from tasks.admission import is_measured, problems_with, require_admitted
from tasks.refs import pending_ref
from training_core.errors import AdmissionError

GOOD = {
    "heldout_pairs": 400.0,
    "heldout_accuracy": 0.8,
    "heldout_accuracy_low": 0.75,
    "over_rule_length_low": 0.7,
    "over_rule_format_low": 0.7,
    "over_empty_low": 0.9,
    "over_repeated_low": 0.6,
    "over_truncated_low": 0.8,
}


def reward_model(**metrics):
    ref = pending_ref("reward_model", "reward_model", "reward_model")
    return ref.model_copy(update={"metrics": metrics})


def test_a_good_reward_model_is_admitted():
    assert problems_with(reward_model(**GOOD), AdmissionConfig()) == []
    require_admitted("ppo", reward_model(**GOOD), AdmissionConfig())


@pytest.mark.parametrize("name", [n for n in GOOD if n.endswith("_low")])
def test_each_number_can_refuse_it(name):
    bad = reward_model(**{**GOOD, name: 0.5})
    with pytest.raises(AdmissionError) as caught:
        require_admitted("ppo", bad, AdmissionConfig())
    text = str(caught.value)
    assert "step 'ppo' does not start" in text
    assert "above 0.5, found 0.500" in text
    assert "reward_model.admission" in text
    assert text.count("expected") == 1


def test_a_preset_can_lower_the_bar():
    weak = reward_model(**{**GOOD, "over_repeated_low": 0.1, "heldout_accuracy_low": 0.45})
    lower = AdmissionConfig(min_accuracy=0.4, beats_responses=("empty", "truncated"))
    require_admitted("ppo", weak, lower)
    require_admitted("ppo", weak, AdmissionConfig(required=False))
    with pytest.raises(AdmissionError):
        require_admitted("ppo", weak, AdmissionConfig())


def test_without_held_out_pairs_nothing_is_known_and_it_is_refused():
    with pytest.raises(AdmissionError, match="expected held-out pairs, found none"):
        require_admitted("ppo", reward_model(heldout_pairs=0.0), AdmissionConfig())


def test_a_reward_model_from_elsewhere_has_no_numbers_and_is_not_refused():
    assert not is_measured(reward_model(parameters=1e6))
    require_admitted("ppo", reward_model(parameters=1e6), AdmissionConfig())
