"""What a person does with a model after its training: find it, let it answer, score, publish."""
