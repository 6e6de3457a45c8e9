"""What a preset says: the lifecycle's configuration and the YAML files it comes from."""
