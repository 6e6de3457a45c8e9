"""From rows to token ids and loss masks, and from those to micro-batches."""
