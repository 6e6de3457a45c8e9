"""Config classes: one per stage, and the blocks that several stages share."""
