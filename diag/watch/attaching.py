"""The environment in which a training records itself, for the launcher that starts it, in the form that it takes."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from diag import processes
from diag.collectors.launchers import KUBERNETES, Job, joining
from diag.collectors.layout import RUN_DIR_VARIABLE
from diag.collectors.packing import FOLDER_VARIABLE, PACK_VARIABLE, Packing, node_folder
from diag.collectors.settings import ATTACH_VARIABLE, SITE, CollectorSettings, attached, python_path
from diag.collectors.watching import WATCH_VARIABLE, Watching
from diag.errors import DiagError, ExitCode
from diag.store.stores import is_remote

_NOT_RECORDED = "THE TRAINING THAT STARTS HERE IS NOT RECORDED"


@dataclass(frozen=True)
class Attaching:
    """``site``: the folder that goes first on PYTHONPATH."""

    variables: Mapping[str, str]
    site: str = str(SITE)

    def as_lines(self) -> str:
        return "".join(f"{name}={value}\n" for name, value in self.everything().items())

    def as_json(self) -> str:
        return f"{json.dumps(self.everything())}\n"

    def everything(self) -> dict[str, str]:
        """The variables, and PYTHONPATH with that of this process behind ours."""
        return {**self.variables, "PYTHONPATH": python_path()}

    def as_shell(self) -> str:
        """What a shell evaluates. The PYTHONPATH of that shell comes after ours. It may be evaluated where the recorder
        is not installed, which it says on standard error; it never ends the script."""
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.variables.items()]
        lines.append(f'export PYTHONPATH={shlex.quote(self.site)}"${{PYTHONPATH:+:$PYTHONPATH}}"')
        module = shlex.quote(f"{self.site}/sitecustomize.py")
        lines.append(f"[ -r {module} ] || {_complaint(f'cannot read {self.site}')}")
        return "\n".join(lines) + "\n"

    def as_kubernetes(self) -> str:
        """The `env` of a container, in YAML."""
        import yaml

        entries: list[dict[str, object]] = [
            {"name": name, "value": value.replace("$(", "$$(")}  # which Kubernetes would replace
            for name, value in {**self.variables, "PYTHONPATH": self.site}.items()
        ]
        entries += [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}
            for name, label in KUBERNETES.items()
        ]
        text: str = yaml.safe_dump({"env": entries}, sort_keys=False, width=1000)
        return text


def not_recorded(error: DiagError) -> str:
    """What a shell evaluates instead: it says why, and the training goes on."""
    where = f": {error.path}" if error.path is not None else ""
    return f"unset {ATTACH_VARIABLE}\n{_complaint(f'{error.message}{where}')}\n"


def _complaint(why: str) -> str:
    text = " ".join(f"diag: {_NOT_RECORDED}: {why}".split())
    return f"echo {shlex.quote(text)} >&2"


def variables_of(
    folder: Path, settings: CollectorSettings, packing: Packing | None, job: Job | None, watch: bool
) -> dict[str, str]:
    """The variables of all processes of an attempt, without PYTHONPATH. ``watch``: rank 0 starts a watcher, by the
    interpreter that runs this."""
    variables = {**attached(folder, settings), ATTACH_VARIABLE: joining(job)}
    if watch:
        watching = Watching(variables[RUN_DIR_VARIABLE], processes.python()[0], processes.__file__)
        variables[WATCH_VARIABLE] = watching.to_json()
    if packing is not None:
        variables[PACK_VARIABLE] = packing.to_json()
    return variables


def in_containers(
    out: str, settings: CollectorSettings, pack_interval_s: float, pack: bool, recorder: str | None, watch: bool
) -> Attaching:
    """For containers that start later, maybe in images that have the recorder elsewhere: in the folder ``recorder``,
    with `collectors` and, for a packer, `bin/python`. Such a folder has no watcher. Nothing is made here. DiagError for
    a relative path."""
    for name, path in (("--out", out), ("--recorder", recorder)):
        if path is not None and not is_remote(path) and not Path(path).is_absolute():
            raise DiagError(
                f"{name} {path} is no absolute path", hint="name the place in the container", exit_code=ExitCode.USAGE
            )
    folder, site, packing = Path(out), str(SITE), None
    if pack or is_remote(out):
        folder = node_folder(environ={FOLDER_VARIABLE: os.environ.get(FOLDER_VARIABLE, "/tmp")})
        packing = Packing(out, pack_interval_s, processes.python()[0], processes.__file__)
    if recorder is not None:
        there = recorder.rstrip("/")
        site = f"{there}/collectors/attach/site"
        packing = packing and replace(packing, python=f"{there}/bin/python", starter=f"{there}/processes.py")
    return Attaching(variables_of(folder, settings, packing, None, watch and recorder is None), site)
