"""`python -m ddops`."""

from ddops.cli import main

main()
