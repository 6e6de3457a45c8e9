"""The `ratchet` command: one module per subcommand."""
