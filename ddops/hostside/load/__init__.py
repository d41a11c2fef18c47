"""The measuring client: sends a plan of requests to an engine and says when each byte came.

Run on the target as `python3 -m load` with this folder's parent on PYTHONPATH; the plan is read
from standard input as JSON, the answer is zlib-compressed JSON on standard output. Standard
library only, Python 3.9 or newer. Definitions: docs/explanation/numbers.md, docs/adr/0008.
"""
