"""The folder that the launcher puts first on PYTHONPATH. It holds only ``sitecustomize``, so nothing else is importable
from it."""
