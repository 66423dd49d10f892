"""Sends each rank's standard output and standard error to its own files, through torchrun's interface for that."""

from __future__ import annotations

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from diag.collectors.layout import RunLayout


class RunLogs(LogsSpecs):
    """Logs under the run directory. The first rank's standard output is shown as well: it prints the progress;
    ``everything``: all that all ranks print.

    Two files a rank, because torchrun opens each stream for itself: one file for both would overwrite itself.
    """

    def __init__(self, layout: RunLayout, everything: bool = False) -> None:
        super().__init__(log_dir=str(layout.root))
        self._everything = everything
        self._layout = layout

    @property
    def root_log_dir(self) -> str:
        return str(self._layout.root)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        destinations = LogsDest()
        for local_rank, environment in envs.items():
            rank = int(environment["RANK"])
            files = self._layout.rank(rank)
            files.folder.mkdir(parents=True, exist_ok=True)
            destinations.stdouts[local_rank] = str(files.stdout)
            destinations.stderrs[local_rank] = str(files.log)
            # Where ``record`` puts the exception that ended the process, with its time.
            destinations.error_files[local_rank] = environment["TORCHELASTIC_ERROR_FILE"] = str(files.error)
            if rank == 0 or self._everything:
                destinations.tee_stdouts[local_rank] = str(files.stdout)
            if self._everything:
                destinations.tee_stderrs[local_rank] = str(files.log)
        return destinations
