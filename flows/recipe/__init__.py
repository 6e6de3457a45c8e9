"""What all flows share: how a recipe starts, runs, is stopped and is reported, and its parts."""
