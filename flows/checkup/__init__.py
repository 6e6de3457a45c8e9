"""Checks of this machine and its services, each with the fix for what it finds."""
