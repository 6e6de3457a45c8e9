"""The four services that Ratchet needs, run on one machine: Prefect, MLflow, Ray and a worker."""
