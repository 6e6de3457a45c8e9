"""What training stages share: base model, engine, fitting, checkpoints, held-out metrics."""
