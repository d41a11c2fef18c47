"""Measuring: load, gates of correctness, statistics, and what is concluded from them."""
