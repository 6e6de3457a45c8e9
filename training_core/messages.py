"""Conversations as plain values; imports nothing, so that rows can be read without torch."""

from __future__ import annotations

from collections.abc import Mapping

Message = Mapping[str, str]
"""A turn of a conversation: its `role` and `content`."""

Messages = tuple[Message, ...]
"""A conversation."""
