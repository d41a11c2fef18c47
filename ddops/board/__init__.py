"""The status board: what is observed of every host, each value with its age.

`model`, `look`, `figures`, `judge`, `fleet` and `show` are pure. `poller` asks the hosts, `books`
the ledger, `recording` keeps what both heard. `app` and `pages` draw it and alone load Textual.
"""
