"""Where a line of a job's logs stands, in few words: `log:157`, its whole path said once."""

import re
from dataclasses import dataclass

from raydiag.model import Evidence
from raydiag.triage.verdict import Verdict

LOG = "log"  # what the job's log is called, wherever it lies
_LINE_OF_FILE = re.compile(r".+:\d+")


@dataclass(frozen=True)
class JobPlaces:
    """Names of one job's files: the log is `log`, others go by their place in its directory."""

    verdict: Verdict

    def short(self, source: str) -> str:
        """The source of a piece of evidence, or a text that begins with one, without directories.

        What a line says stays as it is, whatever a job's files are called.
        """
        log, directory = self.verdict.log, self.verdict.resolved.job_dir
        if log and (source == log or source.startswith(f"{log}:")):
            return f"{LOG}{source[len(log) :]}"
        return source.removeprefix(f"{directory.rstrip('/')}/") if directory else source

    @staticmethod
    def is_of_log(evidence: Evidence) -> bool:
        """Whether it is a line of a file, which context may surround."""
        return _LINE_OF_FILE.fullmatch(evidence.source) is not None
