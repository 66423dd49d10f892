"""Put first on PYTHONPATH by the launcher: holds ``sitecustomize`` and nothing else that could be imported from it."""
