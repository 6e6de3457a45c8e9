"""Training works on real data: the claims of docs/proof.md, on fewer rows.

The settings are those of `benchmarks/learning.py`, except where a test says otherwise. Floating
point differs between machines as it does between seeds, so the claims leave room for both.
"""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import learning_recipes as recipes
from benchmarks.learning import short_sft, train_preference, train_process, train_reward
from benchmarks.learning_baselines import (
    bag_of_words,
    balanced_accuracy,
    mcnemar,
    mean_with_interval,
    share_with_interval,
)
from benchmarks.learning_measures import judged, policy_margins, reward_margins
from tests.stages.running import finish

pytestmark = pytest.mark.slow


def test_sft_lowers_the_loss_of_instructions_that_it_never_saw(shared_data, folder, store):
    train, heldout = recipes.instructions(shared_data).write(folder / "sft", limit=300)
    config = {
        "base": recipes.story_model(shared_data),
        "chat_template": recipes.STORY_TEMPLATE,
        "data": train,
        "eval_data": heldout,
        "training": recipes.training(1, 1e-3),
    }
    metrics = finish(store, "sft", config).metrics
    # A model of stories that is asked about grammar and chemistry: 6.6 nats per token before.
    assert metrics["heldout_loss"] < metrics["heldout_loss_before"] - 0.5


@pytest.mark.parametrize("name", ["polite", "harmless"])
def test_a_reward_model_is_no_worse_than_a_bag_of_words(shared_data, folder, store, name):
    recipe = recipes.REWARD_RECIPES[name]
    directory, heldout = train_reward(recipe, shared_data, folder / name, store)
    ours = reward_margins(directory, heldout) > 0
    task = recipe.task(shared_data)
    baseline = bag_of_words(task.train, task.heldout, folds=3, strengths=(0.003, 0.1, 1.0))
    theirs = baseline.margins > 0
    assert share_with_interval(ours).low > {"polite": 0.8, "harmless": 0.5}[name]
    assert ours.mean() >= theirs.mean() or mcnemar(ours, theirs) > 0.05


@pytest.fixture(scope="module")
def preferences(shared_data, folder, store):
    """A short SFT, 160 training pairs and all 100 held-out ones."""
    whole = recipes.polite(shared_data)
    task = recipes.Task(whole.name, whole.train[:160], whole.heldout)
    train, heldout = task.write(folder / "preference")
    start = short_sft(shared_data, folder / "preference", store, task)
    return start, {"data": train, "eval_data": heldout}


@pytest.mark.parametrize("name", recipes.PREFERENCE_RATES)
def test_a_preference_loss_raises_the_margin_of_pairs_that_it_never_saw(preferences, store, name):
    start, data = preferences
    epochs = 2 if name == "orpo" else 1  # most of its gradient is not in the margin
    trained = train_preference(name, start, store, data, batch_size=4, epochs=epochs)
    after, before = (
        policy_margins(
            store.artifact_dir(m), data["eval_data"], per_token=name in recipes.PER_TOKEN
        )
        for m in (trained, start)
    )
    assert mean_with_interval(after - before).low > 0
    assert trained.metrics["heldout_margin"] > trained.metrics["heldout_margin_before"]


def test_a_process_reward_model_beats_the_majority_class(shared_data, folder, store):
    task = recipes.mistakes(shared_data, "tracking_shuffled_objects")
    settings = recipes.training(4, 2e-3)
    directory = train_process(task, folder / "process", store, settings, layers=1)
    says, is_right = judged(directory, recipes.write_rows(folder / "steps.jsonl", task.heldout))
    hits = says == is_right
    assert np.mean(hits) > np.mean(is_right) + 0.02  # always "right" is the majority's answer
    assert balanced_accuracy(says, is_right) > 0.65  # the majority class has 0.5
