"""The report's links, comparisons, histograms, costs and words."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from made_lifecycles import ABOUT, SAMPLES, Config, finish, lifecycle_in, tell, text_of

from stages.configs.canary_record import CanaryRecord
from stages.runtime.store import Store
from tasks.report.costs import cost_of, total
from tasks.report.differences import differences
from tasks.report.index_page import ReportLink, render_index
from tasks.report.lifecycle import Outcome, StepPages, gather
from tasks.report.page import render

NO_OUTCOME = Outcome(is_champion=False)


def figures(html: str, start: str) -> list[str]:
    """What the figures say to people who cannot see them, of those that start like this."""
    return [alt for alt in re.findall(r'aria-label="([^"]*)"', html) if alt.startswith(start)]


def test_steps_link_to_their_run_their_version_and_their_log(store):
    refs = lifecycle_in(store)
    log = store.attempt("ppo", refs[3].key, "a1").log
    log.write_text("round 1\n")
    pages = {"ppo": StepPages("http://m/#/run?a=1&b=2", "http://m/#/version")}
    about = replace(ABOUT, steps=pages, page="http://p/run", name="tiny · <b>")

    html = render(gather(store, refs, Config(), about, NO_OUTCOME))

    assert '<a href="http://m/#/run?a=1&amp;b=2">run</a>' in html
    assert '<a href="http://m/#/version"><code>tiny.policy/7</code></a>' in html
    assert f'<a href="{log.as_uri()}"' in html
    assert '<a href="http://p/run"><code>5f0c3a2e</code></a> · tiny · &lt;b&gt;' in html
    assert f'<a href="{(store.root / "reports" / "index.html").as_uri()}"' in html
    assert html.count(">log</a>") == 1  # the others have none


def test_the_checks_before_the_first_step_have_their_numbers_and_limits(store):
    assert 'id="canaries"' not in render(
        gather(store, lifecycle_in(store), Config(), ABOUT, NO_OUTCOME)
    )
    canary = CanaryRecord(name="first_kl", shows="log-ratio to <b>", found=2e-5, limit=3.45e-4)
    dpo = finish(store, "dpo_1", "dpo", canaries=(canary,))
    html = render(gather(store, [dpo], Config(), ABOUT, NO_OUTCOME))
    assert "Log-ratio to &lt;b&gt;" in html
    assert '<td class="right number">2.00e-05</td><td class="right number">0.000345</td>' in html


@pytest.mark.parametrize("part", ["", "cafe"])
def test_the_optimised_reward_stands_beside_the_judges(store, part):
    refs = lifecycle_in(store)
    rounds = [{"ppo/reward": 1.0 + i, "ppo/kl": 0.04 * i * i} for i in range(3)]
    if part:
        for i, found in enumerate(rounds):
            found["ppo/component_cafe"] = 0.1 * i
    begun = refs[2].key
    ppo = finish(
        store,
        "ppo_2",
        "ppo",
        curve=rounds,
        config={"reward": {"name": "reward_model"}},
        metrics={"exported_step": 2.0},
        parents={"policy": begun},
    )

    html = render(tell(store, [*refs, ppo]))

    (of_first,) = figures(html, "ppo: optimised reward")
    assert of_first.endswith("mean reward of the judge 0.663 at round 0, 0.853 at round 2")
    # nobody judged what ppo_2 made, but its input is rejection SFT with 0.663
    (of_second,) = figures(html, "ppo_2: optimised reward")
    assert of_second.endswith("from 1 to 3; mean reward of the judge 0.663 at round 0")
    # sqrt(0.04 * 4) = 0.4
    (distance,) = figures(html, "ppo_2: reward against the square root")
    assert distance.endswith("from 1 at 0 to 3 at 0.400")
    told = "Between them it is not available, because it is no part of the reward."
    assert text_of(html).count(told) == (1 if part else 2)
    assert "raised the reward reward_model on its training prompts" in text_of(html)


def test_what_cannot_be_compared_is_said_to_be_unavailable(store):
    ppo = finish(store, "ppo", "ppo", curve=[{"ppo/reward": 0.5}, {"ppo/reward": 0.9}])

    text = text_of(render(tell(store, [ppo])))

    assert "not available: this run has no evaluation" in text
    assert "not available: the KL to a reference was not measured" in text


@pytest.mark.parametrize("parted", [None, 2.0])
def test_the_evaluated_checkpoints_show_reward_and_judge_and_where_they_parted(store, parted):
    judged = [(0.1, 0.5), (0.4, 0.8), (0.9, 0.2)]
    names = ("reward", "judge_reward", "judge_reward_low", "judge_reward_high", "kl")
    curve = [
        {
            f"ppo/heldout_{name}": v
            for name, v in zip(names, (r, j, j - 0.1, j + 0.1, k), strict=True)
        }
        | {"ppo/reward": r}
        for k, (r, j) in enumerate(judged)
    ]
    metrics = {"exported_step": 2.0, **({"parted_step": 3.0} if parted else {})}
    ppo = finish(store, "ppo", "ppo", curve=curve, metrics=metrics)

    html = render(tell(store, [ppo]))

    (figure,) = figures(html, "ppo: held-out reward and the judge")
    assert figure.endswith(
        "0.100 and 0.500 after 1, 0.400 and 0.800 after 2, 0.900 and 0.200 after 3"
    )
    text = text_of(html)
    assert ("Over-optimisation : after round 3 the reward" in text) == bool(parted)
    assert ("They did not part" in text) == (not parted)
    assert "The policy after round 2 was kept." in text


def test_axes_have_names_with_units(store):
    html = render(tell(store, lifecycle_in(store)))

    shown = re.findall(r"<text[^>]*>([^<]*)</text>", html)
    for name in (
        "optimizer step",
        "round",
        "nats per response",
        "share of responses",
        "length (words)",
    ):
        assert name in shown, name


def test_responses_have_histograms_of_reward_and_length(store):
    rows = [
        {"chosen": "a b c", "rejected": "a", "chosen_reward": 0.5, "rejected_reward": -1.0},
        {"chosen": "a", "rejected": "a b", "chosen_reward": 1.5, "rejected_reward": 0.0},
    ]
    data = {"data.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}
    pairs = finish(store, "pairs", "preference_pairs", "dataset", files=data)

    html = render(tell(store, [*lifecycle_in(store), pairs]))

    assert figures(html, "pairs, ") == [
        "pairs, chosen: reward, 0.500 to 1.50, median 1",
        "pairs, chosen: length (words), 1 to 3, median 2",
    ]
    text = text_of(html)
    assert text.count("Chosen; outline: rejected") == 2
    assert text.count("Held-out responses; outline: SFT") == 4  # rejection SFT and PPO
    # "four coffee . enjoy !" and "two tea ."
    assert "ppo, PPO: length (words), 3 to 5, median 4" in figures(html, "ppo, ")


def test_the_worst_regressions_are_picked_from_all_prompts(store, monkeypatch):
    worse = [("baseline", str(i), f"order {i}", "good", 1.0) for i in range(10, 30)]
    worse += [("policy", str(i), f"order {i}", "bad", 1.0 - i / 100) for i in range(10, 30)]
    monkeypatch.setattr("made_lifecycles.SAMPLES", [*SAMPLES, *worse])

    story = tell(store, lifecycle_in(store))
    text = text_of(render(story))

    assert [p.prompt for p in story.judged.regressions] == [f"order {i}" for i in range(29, 23, -1)]
    assert story.judged.regressions[0].gain == pytest.approx(-0.29)
    assert "Where PPO is worst against SFT The 6 held-out prompts" in text
    assert "order 29 reward -0.29 from the baseline to the candidate" in text


def test_a_policy_that_lost_nowhere_has_no_regressions(store):
    text = text_of(render(tell(store, lifecycle_in(store))))

    assert "is worst against" not in text


# ------------------------------------------------------------------------- config


def test_a_difference_names_its_value_in_every_run():
    now = {"ppo": {"kl_coef": 0.1, "steps": 9}, "dpo": None, "seeds": [1, 2]}
    champion = {"ppo": {"kl_coef": 0.2, "steps": 9}, "dpo": {"beta": 0.5}, "seeds": [1, 2]}
    previous = {"ppo": {"kl_coef": 0.1, "steps": 9}, "dpo": None, "seeds": [1]}

    found = differences(now, {"champion": champion, "previous": previous})

    assert [(d.field, d.now, d.others) for d in found] == [
        ("ppo.kl_coef", "0.1", ("0.2", "0.1")),
        ("seeds", "[1, 2]", ("[1, 2]", "[1]")),
        ("dpo.beta", "not set", ("0.5", "not set")),
    ]


@pytest.mark.parametrize(
    ("compared", "expected"),
    [
        ({}, "There is no earlier run of tiny to compare with."),
        (
            {"previous run": {"name": "tiny", "learning_rate": 0.002}},
            "The same as in the previous run.",
        ),
        (
            {"previous run": {"name": "tiny", "learning_rate": "<i>"}},
            "Field This run Previous run learning_rate 0.002 <i>",
        ),
    ],
)
def test_the_page_says_what_differs_in_the_config(store: Store, compared, expected):
    refs = lifecycle_in(store)
    html = render(gather(store, refs, Config(), ABOUT, NO_OUTCOME, compared=compared))

    assert expected in text_of(html)
    assert "<i>" not in html


# ------------------------------------------------------------------------- cost


def test_a_cost_is_time_times_devices_and_reuse_is_saved(store):
    hour = {"seconds": 3600.0, "cpu_seconds": 57600.0, "gpu_seconds": 28800.0}
    sft = finish(store, "sft", "sft", cost=hour)  # is reused
    minute = {"seconds": 60.0, "cpu_seconds": 60.0, "trained_tokens": 51200.0}
    dpo = finish(store, "dpo_1", "dpo", cost=minute)

    story = tell(store, [sft, dpo])
    text = text_of(render(story))

    assert [cost_of(step).devices for step in story.steps] == [
        "8 GPUs and 16 CPU cores",
        "1 CPU core",
    ]
    assert total(story.steps, is_reused=True).gpu_seconds == 28800
    assert "SFT saved 1 h 00 min 8 GPUs and 16 CPU cores 16 h 00 min 8 h 00 min" in text
    assert "Spent by this run 1 min 00 s 1 min 00 s 0 s 51,200 0" in text
    assert "Saved by reuse 1 h 00 min 16 h 00 min 8 h 00 min" in text


# ------------------------------------------------------------------------- the list of reports


def test_the_list_shows_each_report_and_escapes_what_it_shows():
    links = [
        ReportLink(
            "b/report.html", 0.0, "tiny", "raft", "tiny · <b>", "SFT 1 → PPO 2", True, "won"
        ),
        ReportLink("a/report.html", 0.0, "old", "", "a", "", False, ""),
    ]

    html = render_index(links)

    assert '<a href="b/report.html">tiny · &lt;b&gt;</a>' in html
    text = text_of(html)
    assert "2 reports, newest first" in text
    assert "tiny flow raft SFT 1 → PPO 2 yes won 1 January 1970, 00:00 UTC" in text
    assert "a old not measured no 1 January" in text
