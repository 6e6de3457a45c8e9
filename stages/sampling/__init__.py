"""Prompts become scored rollouts: engine, rewards, groups, selection, judging."""
