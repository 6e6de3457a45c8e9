"""What a reward model must show on held-out pairs before a policy is optimised for it."""
