"""Convert rows to token ids and loss masks, and these to micro-batches."""
