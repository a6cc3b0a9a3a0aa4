"""Fetches a page with a library of Python's."""

import importlib
import sys

library, address = sys.argv[1:]
response = importlib.import_module(library).get(address)
print(response.text)
response.raise_for_status()
