"""The stages: one module per stage, with `run(config, inputs, context) -> Result`."""
