"""Rows become micro-batches: encoding, collating, cutting."""
