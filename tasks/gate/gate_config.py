"""Configuration of the gate: what a candidate must show, and whether a person must approve it."""

from __future__ import annotations

from stages.configs.block import Block, operational


class ApprovalConfig(Block):
    """Approval of a promotion by a person, after the gate has passed the candidate."""

    required: bool = operational(
        False,
        "Suspend the run until a person approves; no process and no GPU waits meanwhile.",
    )
    expires_hours: float = operational(
        72.0,
        "Without an answer in so many hours the candidate is held, and the run ends.",
        gt=0,
        le=8760,
    )


class GateConfig(Block):
    """Thresholds of a promotion; None disables a check. No stage result depends on them."""

    false_promotion_rate: float = operational(
        0.025,
        "Chance that a policy that is only equal to its opponent is promoted, at most; over all "
        "attempts against this opponent on the same prompts.",
        gt=0,
        lt=0.5,
    )
    min_judged_prompts: int = operational(
        50,
        "At least so many prompts must be judged; with 50 a policy that wins three of four is "
        "found in nine of ten evaluations.",
        ge=1,
    )
    min_judged_fraction: float = operational(
        0.9,
        "At least this fraction of the prompts must be judged, i.e. neither too long nor without a "
        "reward; those that are left out are not a random choice.",
        ge=0,
        le=1,
    )
    min_win_rate_low: float = operational(
        0.5,
        "Lower bound of the win rate must exceed this fraction; 0.5 says that the candidate is "
        "better than its opponent beyond chance.",
        ge=0,
        le=1,
    )
    min_reward_gain: float = operational(
        0.0,
        "Mean reward minus the opponent's must exceed this, in units of the reward. Without it "
        "many small wins would outweigh a few large losses, and champions could go round in a "
        "circle.",
        ge=0,
    )
    min_gain_over_noise: float | None = operational(
        2.0,
        "Mean gain must be so many times the noise of sampling, which is known if the evaluation "
        "has several responses per prompt; with one response there is no such check.",
        ge=0,
    )
    source_regression_rate: float | None = operational(
        0.05,
        "Chance that a policy that is equal on every source of the prompts is turned down because "
        "it seems worse on one of them, at most; over all sources together.",
        gt=0,
        lt=0.5,
    )
    max_source_loss: float | None = operational(
        None,
        "Mean reward on each source may be at most this much below the opponent's, in units of the "
        "reward; off by default, since a few prompts vary by chance.",
        ge=0,
    )
    max_length_change: float | None = operational(
        2.0,
        "Mean response may be at most so many times as long as the champion's, and at most so many "
        "times shorter; there is no such check while there is no champion.",
        ge=1,
    )
    max_refusal_rise: float | None = operational(
        0.1,
        "Share of responses that look like refusals may exceed the champion's by at most this. "
        "Only a list of English phrases is looked for.",
        ge=0,
        le=1,
    )
    max_kl: float | None = operational(
        None, "Divergence from the reference may be at most this, in nats per response.", ge=0
    )
    max_response_tokens: float | None = operational(
        None,
        "Mean response may be at most this long, against rewards that length alone buys.",
        gt=0,
    )
    min_finished_fraction: float | None = operational(
        None, "At least this fraction of responses must end by themselves.", ge=0, le=1
    )
    approval: ApprovalConfig = operational(
        ApprovalConfig(), "Whether a person must approve what the gate has passed."
    )

    def level_of(self, attempt: int) -> float:
        """Return the level of an attempt; attempts are counted from 1."""
        return self.false_promotion_rate / (attempt * (attempt + 1))
