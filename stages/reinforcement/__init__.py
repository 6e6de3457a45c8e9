"""What reinforcement-learning stages share: the controller, experience and learners."""
