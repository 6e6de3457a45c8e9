"""From rows to micro-batches: encoding, collating, cutting."""
