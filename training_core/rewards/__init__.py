"""Rewards: from rollouts to numbers, or to the reason why there is none."""
