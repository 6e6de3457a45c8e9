"""A stage refuses models that do not fit together, unless the difference is declared."""

from __future__ import annotations

import json
import shutil
from typing import get_args

import pytest

from stages.catalog import STAGES
from stages.configs.contract_rules import SAME_AS_POLICY, ContractField
from stages.configs.dpo_config import DpoConfig
from stages.configs.ppo_config import PpoConfig
from stages.training.hand_off import require_contracts
from training_core.data.templates import CHAT_TEMPLATES
from training_core.errors import ConfigError
from training_core.models import hub
from training_core.models.model_contract import contract_of

DPO = DpoConfig.model_validate({"data": {"name": "cafe", "size": 8}})
PPO = PpoConfig.model_validate({"prompts": {"name": "cafe", "size": 8}})


@pytest.fixture
def policy(make_policy, tokenizer, tmp_path):
    hub.save(make_policy(), tokenizer, tmp_path / "policy")
    return tmp_path / "policy"


@pytest.fixture
def other(policy, tmp_path):
    return shutil.copytree(policy, tmp_path / "other")


def with_template(folder, template):
    tokenizer = hub.load_tokenizer(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)


def with_swapped_ids(folder):
    """Two words exchange their ids, as in another tokenizer of the same size."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    vocabulary = content["model"]["vocab"]
    one, two = sorted(vocabulary, key=vocabulary.get)[-2:]
    vocabulary[one], vocabulary[two] = vocabulary[two], vocabulary[one]
    path.write_text(json.dumps(content))


def test_the_contract_has_every_field_and_describes_the_files(policy, tokenizer):
    contract = contract_of(policy)
    assert set(contract) == set(get_args(ContractField))
    assert contract["vocabulary"].startswith(f"{len(tokenizer)} tokens")
    assert contract["end_tokens"] == str(tokenizer.eos_token_id)
    assert contract["padding"] == f"'{tokenizer.pad_token}' = {tokenizer.pad_token_id}"
    assert contract["dtype"] == "float32"
    assert contract_of(policy) == contract


def test_the_rules_name_roles_of_stages_and_fields_of_the_contract():
    roles = {role for r in STAGES.values() for role in (*r.required, *r.optional)}
    assert set(SAME_AS_POLICY) <= roles
    assert {f for fields in SAME_AS_POLICY.values() for f in fields} <= set(get_args(ContractField))


@pytest.mark.parametrize("config", [DPO, PPO])
def test_equal_models_are_accepted(config, policy, other):
    require_contracts(config, {"policy": policy, "reference": other})
    require_contracts(config, {"policy": policy, "reference": policy})


@pytest.mark.parametrize("config", [DPO, PPO])
def test_a_reference_with_another_template_is_refused_unless_that_is_declared(
    config, policy, other
):
    with_template(other, CHAT_TEMPLATES["plain"])
    inputs = {"policy": policy, "reference": other}
    with pytest.raises(ConfigError) as caught:
        require_contracts(config, inputs)
    text = str(caught.value)
    assert "the input 'reference' must agree with the policy" in text
    assert contract_of(policy)["chat_template"] in text  # both values
    assert contract_of(other)["chat_template"] in text
    assert "vocabulary:" not in text
    declared = config.model_copy(update={"allow_differences": ("chat_template",)})
    require_contracts(declared, inputs)


def test_a_reference_with_permuted_ids_is_refused(policy, other):
    with_swapped_ids(other)
    with pytest.raises(ConfigError, match=r"vocabulary: the policy has \d+ tokens, digest"):
        require_contracts(DPO, {"policy": policy, "reference": other})


def test_a_reward_model_and_other_policies_may_have_a_tokenizer_of_their_own(policy, other):
    with_swapped_ids(other)
    with_template(other, CHAT_TEMPLATES["plain"])
    require_contracts(PPO, {"policy": policy, "reward_model": other, "policy_champion": other})
