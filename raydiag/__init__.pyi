from raydiag.api import Answer as Answer
from raydiag.api import diagnose as diagnose
from raydiag.api import probe as probe
from raydiag.api import triage as triage

__version__: str
