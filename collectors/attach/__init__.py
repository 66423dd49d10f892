"""Recording a training whose script knows nothing of it.

The launcher puts the folder ``site`` first on PYTHONPATH, so that every Python process which it starts runs ``site/
sitecustomize.py`` before its own first line. That loads ``boot``, which waits for the process to import torch and then
lets ``life`` put the hooks in place. Recording begins when the process joins a process group or trains.

In a training process these modules are loaded under a name of their own: ``diag`` may be a package of the user's.
"""
