"""Pure functions of tensors, each with its formula and source. This package imports only torch."""
