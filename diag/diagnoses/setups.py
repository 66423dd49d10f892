"""What runs were asked to do: which of them are of one job, and which repeat one another."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from diag.collectors.layout import RunLayout, world_size_of
from diag.collectors.records import Manifest
from diag.errors import DiagError
from diag.rundir.lines import read_manifest
from diag.rundir.tables import Tables

from .compare import model_of, settings_of


class Setup(Struct, frozen=True):
    """What makes two runs runs of the same job. ``script``: the name of its file, "" of the bundled trainer and where
    it is not known; ``device``: its name, "" if unknown; ``model``: as in ``Work``; ``began_ns``: Unix time;
    ``settings``: {} of traces; ``untold``: what else the run was asked to do, which is compared and not shown, as it
    may hold a secret or a planted fault; ``tells``: whether it is known what it was asked to do."""

    script: str
    world_size: int | None
    device: str
    model: dict[str, object]
    began_ns: int
    settings: dict[str, object] = {}
    untold: tuple[str, ...] = ()
    tells: bool = False

    def is_of(self, other: Setup) -> bool:
        """Whether the two are of one job: all but when they began is equal, what is unknown too."""
        mine, its = ((each.script, each.world_size, each.device, each.model) for each in (self, other))
        return mine == its


def setup_of(manifest: Manifest) -> Setup:
    """As far as the manifest alone tells it, without the records of a step."""
    at = next((at for at, word in enumerate(manifest.argv) if word.endswith(".py")), len(manifest.argv))
    script = Path(manifest.argv[at]).name if at < len(manifest.argv) else ""
    world_size, device = world_size_of(manifest.world_size), manifest.device or ""
    untold = (" ".join(manifest.argv[at + 1 :]) if script else "", repr(manifest.trainer.get("inject")))
    tells = bool(script or manifest.trainer)
    model, settings = model_of(manifest), settings_of(manifest)
    return Setup(script, world_size, device, model, manifest.created_unix_ns, settings, untold, tells)


def setup_of_traces(tables: Tables) -> Setup:
    """Of traces, which name neither a script nor a model."""
    began_ns = tables.recorded[0] if tables.recorded is not None else 0
    return Setup("", tables.world_size, "device" if tables.on_device else "cpu", {}, began_ns)


def nearest_of_job(this: Setup, others: Mapping[str, Setup]) -> tuple[str, bool] | None:
    """The name of the run of the same job that began last before this one, else of the one that began first after it;
    and whether it began before. None if no other run is of that job."""
    alike = {name: other.began_ns for name, other in others.items() if this.is_of(other)}
    before = [name for name, began_ns in alike.items() if began_ns <= this.began_ns]
    if before:
        return max(before, key=lambda name: alike[name]), True
    return (min(alike, key=lambda name: alike[name]), False) if alike else None


def setup_planned(run: Path) -> Setup | None:
    """Of a run directory, as far as its manifest tells it; None if there is none to read."""
    try:
        manifest, _ = read_manifest(RunLayout(run))
    except DiagError:  # opening the run reports it
        return None
    return setup_of(manifest) if manifest is not None else None


def repeat(first: Setup | None, second: Setup | None) -> bool:
    """Whether the one is of the same job as the other and was asked to do the same."""
    if first is None or second is None or not first.tells or not first.is_of(second):
        return False
    return (first.settings, first.untold) == (second.settings, second.untold)
