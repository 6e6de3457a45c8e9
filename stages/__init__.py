"""What is done: one page per stage, Config + run(config, inputs, context) -> result."""
