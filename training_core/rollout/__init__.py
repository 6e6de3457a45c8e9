"""Engines that sample responses, and checks that they sample from the trained policy."""
