"""Where a line of a job's logs stands, in few words: `log:157`, its whole path said once."""

import re
from dataclasses import dataclass
from functools import cached_property

from raydiag.model import Evidence
from raydiag.triage.verdict import Verdict

LOG = "log"  # what the job's log is called, wherever it lies
_LINE_OF_FILE = re.compile(r".+:\d+")


@dataclass(frozen=True)
class JobPlaces:
    """Names of one job's files: the log is `log`, others go by their place in its directory."""

    verdict: Verdict

    def short(self, source: str) -> str:
        """The source of a piece of evidence, or a text that names one, without its directories."""
        for path, name in self._names:
            source = source.replace(path, name)
        return source

    @staticmethod
    def is_of_log(evidence: Evidence) -> bool:
        """Whether it is a line of a file, which context may surround."""
        return _LINE_OF_FILE.fullmatch(evidence.source) is not None

    @cached_property
    def _names(self) -> list[tuple[str, str]]:
        directory = self.verdict.resolved.job_dir
        names = [(self.verdict.log, LOG)] if self.verdict.log else []
        if directory:
            names.append((directory.rstrip("/") + "/", ""))
        return names
