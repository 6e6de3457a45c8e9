"""From prompts to scored rollouts: engine, rewards, groups, selection, judging."""
