"""Runbooks: ordered typed steps, journaled, resumed, failing closed."""
