"""The services that Ratchet needs, run on one machine: Prefect, MLflow, Ray and a worker.

A supervisor starts those again that end.
"""
