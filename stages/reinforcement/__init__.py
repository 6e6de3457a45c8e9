"""What reinforcement-learning stages share: the controller, its parts and its models."""
