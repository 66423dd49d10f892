"""Records a training without changes to its script.

The launcher puts the folder ``site`` first on PYTHONPATH, so that every Python process that it starts runs ``site/
sitecustomize.py`` before its own first line. That loads ``boot``, which waits for the process to import torch and then
makes ``life`` install the hooks. Recording begins when the process joins a process group or trains.

In a training process these modules are loaded under a name of their own, as the user may have a package ``diag``.
"""
