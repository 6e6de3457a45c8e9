"""Engines that sample responses from a policy and prove that it is the right one."""
