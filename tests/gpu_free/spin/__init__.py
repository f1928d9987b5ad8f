"""Models of the protocol for the model checker Spin."""
