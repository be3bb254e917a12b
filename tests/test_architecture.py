"""Which code may import, open, signal and print what: read from the source, file by file.

A file that is new has to be given its place here first.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from raydiag import catalog
from raydiag.catalog import signatures
from raydiag.cluster import bundle
from raydiag.playbooks.tables import ROWS
from tools import module_table

PACKAGE = Path(catalog.__file__).parent.parent
REPOSITORY = PACKAGE.parent
ENTRYPOINTS = REPOSITORY / "entrypoints"

# Part of the package -> the parts that it may import, besides its own.
FOUNDATION = {"model", "errors"}
NODE = FOUNDATION | {"host", "procfs"}
ARROWS = {
    "__init__": set[str](),
    "__main__": {"cli"},
    "api": {"cli", "explain", "render", "triage"} | FOUNDATION,
    "model": set[str](),
    "errors": {"model"},
    "host": FOUNDATION,
    "procfs": NODE,
    "amdgpu": NODE,
    "cgroup": NODE,
    "masking": set[str](),
    "rdma_names": set[str](),
    "exporter_hangs": set[str](),
    "exposition": FOUNDATION,
    "protobuf": FOUNDATION,
    "event_file": FOUNDATION | {"protobuf"},
    "step_formats": set[str](),
    "worker_log": {"masking", "step_formats"},
    "nodeset": FOUNDATION,
    "confinement": set[str](),
    "environment": set[str](),
    "ownership": set[str](),
    "untrusted": set[str](),
    "plain_pickle": set[str](),
    "collective_trace": {"plain_pickle", "untrusted"},
    "listening": FOUNDATION | {"host"},
    "parent_death": set[str](),
    "file_writing": set[str](),
    "memory_import": set[str](),
    "sandbox": FOUNDATION | {"confinement", "environment"},
    "probes": {"untrusted"}
    | NODE
    | {"amdgpu", "cgroup", "collective_trace", "masking", "rdma_names", "sandbox", "worker_log"},
    "records": FOUNDATION,
    "runner": NODE | {"confinement", "exporter_hangs", "sandbox", "probes"},
    "catalog": FOUNDATION,
    "kernel_text": FOUNDATION | {"probes"},
    "kmsg": NODE | {"catalog", "explain", "kernel_text", "probes", "rules"},
    "rules": FOUNDATION | {"catalog", "nodeset", "probes", "rdma_names"},
    "joblog": {"environment", "untrusted"} | FOUNDATION | {"nodeset", "records", "step_formats"},
    "triage": FOUNDATION | {"catalog", "joblog"} | {"kernel_text", "rules"},  # kernel lines
    "explain": FOUNDATION
    | {"catalog", "probes", "rules", "joblog", "triage", "tsdb", "timeline", "playbooks"}
    | {"collective_trace", "event_file", "exporter_hangs", "untrusted"},
    "own_command": set[str](),
    "watch": {"environment", "file_writing", "untrusted"}
    | FOUNDATION
    | {"joblog", "own_command", "records", "triage"},
    "alerts": FOUNDATION | {"file_writing", "own_command", "untrusted"},
    "recovery": FOUNDATION | {"catalog", "file_writing", "records", "untrusted"},
    "mcp": FOUNDATION | {"own_command"},
    "doctor": FOUNDATION | {"catalog"},
    "exporter": {"untrusted"}
    | NODE
    | {"file_writing", "environment", "listening", "masking", "ownership"}
    | {"amdgpu", "cgroup", "confinement", "sandbox", "probes", "event_file", "exposition"}
    | {"rdma_names", "records", "explain", "catalog"},  # of `status`, which judges what it sees
    "tsdb": {"untrusted"}
    | FOUNDATION
    | {"catalog", "environment", "event_file", "host", "listening", "parent_death"},
    "timeline": FOUNDATION | {"catalog", "tsdb"},
    "playbooks": FOUNDATION | {"catalog", "tsdb", "timeline"},
    "render": FOUNDATION
    | {
        "catalog",  # of `explain`, which shows what stands there
        "kmsg",
        "masking",
        "nodeset",
        "triage",
        "tsdb",
        "timeline",
        "playbooks",
        "explain",
        "exporter",
        "watch",
        "doctor",
    },
    "cluster": {"untrusted"}
    | FOUNDATION
    | {"probes", "records", "memory_import", "confinement"}
    | {"environment", "ownership", "parent_death"},
    # Its node side; what judges a rollout is pure and takes what nodes have answered.
    "hotfix": {"untrusted"}
    | NODE
    | {"file_writing", "listening", "ownership", "probes", "records", "sandbox", "confinement"}
    | {"exposition", "masking"},
    "cli": {"untrusted"}
    | FOUNDATION
    | {"probes", "catalog", "explain", "render", "cluster", "kmsg", "nodeset"}
    | {
        "joblog",
        "triage",
        "tsdb",
        "exporter",
        "hotfix",
        "environment",
        "ownership",
        "watch",
        "alerts",
        "recovery",
        "mcp",
        "doctor",
        "own_command",
    },
}

IMPORTS_RAY = {
    f"cluster/{one}.py"
    for one in ("arrival", "coordinator", "actor", "local", "hotfix_driver", "node_actors")
} | {"cluster/resident/driver.py", "cluster/resident/warm.py"}

# Every call that ends or signals a process, or looks like one: who is its target?
SIGNALS = {
    ("sandbox.py", "os.kill"),  # a reader, our own child, not yet reaped
    ("sandbox.py", "self.kill"),  # the same
    ("sandbox.py", "process.kill"),  # the program of run_command, our own child
    ("exporter/program.py", "os.killpg"),  # a plugin's group, led by our own unreaped child
    ("exporter/program.py", "os.kill"),  # an unreaped child, by birth or adopted; our own group
    ("exporter/collector.py", "reader.kill"),  # a reader, our own child, not yet reaped
    ("exporter/server.py", "os.kill"),  # the HTTP server, our own child, not yet reaped
    ("exporter/supervise.py", "process.terminate"),  # the exporter below it, the same
    ("exporter/supervise.py", "process.kill"),  # the same
    ("runner.py", "reader.kill"),  # the same
    ("runner.py", "task.reader.kill"),  # the same
    ("cluster/actor.py", "process.kill"),  # the node runner, our own child
    ("cluster/local.py", "process.kill"),  # what the embedded Ray started
    ("cluster/local.py", "self._job.terminate"),  # the coordinator on it, our own child
    ("cluster/ssh.py", "os.killpg"),  # the ssh of --ssh, our own child, with its ssh to a jump host
    ("cluster/coordinator.py", "ray.kill"),  # our own actors
    ("cluster/node_actors.py", "ray.kill"),  # the same
    (
        "hotfix/guarded_request.py",
        "os.killpg",
    ),  # the session of a dry run, our child
    (
        "hotfix/guarded_request.py",
        "os.kill",
    ),  # what it left: our children by then
    # The one function that ends a foreign process: an exporter that was verified, and its server.
    ("hotfix/process.py", "os.pidfd_open"),
    ("hotfix/process.py", "signal.pidfd_send_signal"),
    ("hotfix/process.py", "os.kill"),
    ("watch/sinks.py", "process.kill"),  # the program of --run, our own child
    ("own_command.py", "process.send_signal"),  # a command of our own, our own child
    ("own_command.py", "process.kill"),  # the same
    ("mcp/command.py", "process.send_signal"),  # a command of our own, our own child
    ("mcp/command.py", "process.kill"),  # the same
    ("tsdb/server.py", "self._process.kill"),  # the throw-away prometheus, our own child
}
_SIGNAL_NAMES = {"kill", "killpg", "terminate", "send_signal", "tgkill", "pthread_kill"}
_SIGNAL_NAMES |= {"raise_signal", "pidfd_open", "pidfd_send_signal", "sigqueue", "abort"}

# The report that the user asked for with -o, the directory of the embedded Ray, a file without a
# name for what ssh says, a throw-away server's directory: its links, its log, its removal; and what
# a job has printed, as Ray gives it, in a private directory while it is read.
WRITES_FILES = {
    "cli/browser.py",  # a private directory for the page that --open shows
    "cli/options.py",
    "cli/live.py",
    "cli/pager.py",
    "cluster/local.py",
    "cluster/ssh.py",
}
# A hotfix: its records on head and nodes, the files it replaces, and the one it tries out.
WRITES_FILES |= {f"hotfix/{one}.py" for one in ("dry_run", "journal", "ledger", "replace")}
WRITES_FILES |= {f"tsdb/{one}.py" for one in ("connection", "private_directory", "server", "view")}
# The state of plugins, with its directory; the pid file that was asked for.
WRITES_FILES |= {"exporter/state.py", "exporter/main.py"}
WRITES_FILES |= {"watch/watch_state.py"}  # what a watcher remembers, and its lock
WRITES_FILES |= {"recovery/journal.py"}  # what was decided about a job
WRITES_FILES |= {"alerts/desk.py"}  # answers, in the directory of --directory
WRITES_FILES |= {"cluster/resident/memory.py"}  # the agent's memory, in its own directory
WRITES_FILES |= {"file_writing.py"}  # on behalf of these
_WRITING_CALLS = {"os.replace", "os.rename", "os.remove", "os.link", "os.truncate", "os.chown"}
_WRITING_NAMES = {"write_text", "write_bytes", "mkstemp", "mkdtemp", "NamedTemporaryFile"}
_WRITING_NAMES |= {"TemporaryDirectory", "TemporaryFile", "rmtree", "copytree", "copyfile", "move"}
_WRITING_NAMES |= {"unlink", "rmdir", "mkdir", "makedirs", "touch", "chmod", "symlink", "mknod"}
_WRITING_NAMES |= {"write_file", "symlink_to", "hardlink_to", "mkfifo", "setxattr", "utime"}
_WRITING_FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND", "O_TMPFILE"}

# What coordinator and hotfix driver print is the job's log, which is how their frames travel.
PRINTS = ("cli/", "render/", "cluster/coordinator.py")

STARTS_PROCESSES = {
    "cli/pager.py",  # whatever shows the report on a terminal
    "cluster/actor.py",  # the node runner
    "cluster/afterwards.py",  # an interpreter that lets Ray forget our job
    "cluster/local.py",  # the coordinator, where no Jobs API starts it
    "cluster/ssh.py",  # the system's ssh, for --ssh
    "sandbox.py",  # run_command, in a reader of its kind
    "exporter/program.py",  # a plugin that is a program, in a reader of its kind
    "exporter/supervise.py",  # the exporter, again and again
    "joblog/slurm.py",  # squeue, scontrol, sacct, where they are installed
    "tsdb/server.py",  # the throw-away prometheus
    "own_command.py",  # a read-only command of our own, for a watcher
    "watch/sinks.py",  # the command of --run
    "mcp/command.py",  # a read-only command of our own, for an agent
}
# Never in a Ray worker, which has threads.
FORKS = {
    "sandbox.py",
    "exporter/program.py",
    "exporter/server.py",
    "exporter/log.py",
}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name(path: Path) -> str:
    """As in the tables above: relative to the package."""
    return path.relative_to(PACKAGE).as_posix()


def part(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    """Full names, as in "raydiag.rules.judge" for `from raydiag.rules import judge`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@functools.cache
def roots(path: Path) -> set[str]:
    return {full.partition(".")[0] for full in imported(ast.walk(parsed(path)))}


def parts_imported(nodes: Iterator[ast.AST]) -> set[str]:
    """Parts of our package; a plain name of the package itself, as its version, is of none."""
    found = {full.split(".")[1] for full in imported(nodes) if full.startswith("raydiag.")}
    return {one for one in found if not one.startswith("__")}


@functools.cache
def calls(path: Path) -> list[tuple[str, ast.Call]]:
    calls_of_module = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    return [(ast.unparse(call.func), call) for call in calls_of_module]


def everywhere(found: Callable[[Path], object]) -> set[str]:
    return {name(path) for path in sources() if found(path)}


# ---- arrows


def test_every_part_has_its_place() -> None:
    assert {part(path) for path in sources()} == set(ARROWS)


def test_imports_follow_the_arrows() -> None:
    against = {}
    for path in sources():
        allowed = ARROWS[part(path)] | {part(path)}
        if forbidden := parts_imported(ast.walk(parsed(path))) - allowed:
            against[name(path)] = forbidden
    assert against == {}


def test_no_arrow_is_drawn_for_nothing() -> None:
    used: dict[str, set[str]] = {one: set() for one in ARROWS}
    for path in sources():
        used[part(path)] |= parts_imported(ast.walk(parsed(path))) - {part(path)}
    # Foundations are everybody's; what else is allowed and not used would hide a new import.
    unused = {one: ARROWS[one] - used[one] - NODE for one in ARROWS}
    assert {one: left for one, left in unused.items() if left} == {}


def test_ray_is_imported_where_the_cluster_is_carried_only() -> None:
    assert everywhere(lambda path: "ray" in roots(path)) <= IMPORTS_RAY


def test_what_measures_imports_no_judgement_and_starts_nothing() -> None:
    for path in (PACKAGE / "probes").glob("*.py"):
        assert not roots(path) & {"subprocess", "multiprocessing", "requests", "ray", "yaml"}


JUDGES = [path for part in ("rules", "triage") for path in sorted((PACKAGE / part).glob("*.py"))]


PLAYBOOKS = sorted((PACKAGE / "playbooks").rglob("*.py"))
TIMELINE = sorted((PACKAGE / "timeline").glob("*.py"))
EXPLAINS = [
    PACKAGE / "explain" / name
    for name in (
        "diagnosis.py",
        "names.py",
        "merge.py",
        "chains.py",
        "verdict.py",
    )
]


@pytest.mark.parametrize("path", [*JUDGES, *PLAYBOOKS, *TIMELINE, *EXPLAINS], ids=name)
def test_what_judges_does_no_input_or_output(path: Path) -> None:
    outside = {"os", "io", "sys", "pathlib", "subprocess", "socket", "requests", "urllib", "http"}
    outside |= {"shutil", "tempfile", "ctypes", "time", "random", "ray", "psutil", "threading"}
    assert roots(path) & outside == set()
    assert {f for f, _ in calls(path)} & {"open", "print", "input", "eval", "exec"} == set()


def at_start(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported; not what only the type checker reads."""
    for node in ast.iter_child_nodes(tree):
        is_lazy = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        if is_lazy or (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            continue
        yield node
        yield from at_start(node)


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").glob("*.py")), ids=name)
def test_a_command_imports_what_it_needs_when_it_runs(path: Path) -> None:
    assert parts_imported(at_start(parsed(path))) <= {"cli", "errors", "model"}


def test_help_does_not_pay_for_a_cluster() -> None:
    program = "import sys, raydiag.cli; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    loaded = {module.decode().partition(".")[0] for module in done.stdout.split()}
    assert "raydiag" in loaded
    assert loaded & {"ray", "requests", "yaml", "psutil"} == set()


# ---- what runs on the cluster's Python


def travels() -> list[Path]:
    """Files that the bundles carry, and the programs that unpack them."""
    probes = [path.stem for path in (PACKAGE / "probes").glob("*.py") if path.stem != "__init__"]
    carried = [one.split(".")[1:] for one in {**bundle.modules(probes), **bundle.hotfix_modules()}]
    carried += [one.split(".")[1:] for one in bundle.agent_modules(probes)]
    files = [PACKAGE.joinpath(*parts) for parts in carried]
    inits = [path / "__init__.py" if path.is_dir() else path.with_suffix(".py") for path in files]
    return sorted([*inits, PACKAGE / "cluster" / "arrival.py", *ENTRYPOINTS.glob("*.py")])


@pytest.mark.parametrize(
    "path", travels(), ids=lambda path: path.relative_to(REPOSITORY).as_posix()
)
def test_what_travels_is_python_3_9_and_standard_library(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    since_then = {"tomllib"}  # new in the standard library after 3.9
    foreign = roots(path) - (set(sys.stdlib_module_names) - since_then) - {"raydiag"}
    foreign -= {"__main__"}  # where an entrypoint finds what came with it
    if path == PACKAGE / "cluster/resident/metrics.py":
        foreign -= {"prometheus_client"}  # Ray's dashboard needs it, so the head has it
    may_have_ray = path.is_relative_to(PACKAGE) and name(path) in IMPORTS_RAY
    assert foreign <= ({"ray"} if may_have_ray else set())


@pytest.mark.parametrize("path", sorted((PACKAGE / "exporter").rglob("*.py")), ids=name)
def test_the_exporter_runs_on_python_3_9_with_what_a_node_has(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    foreign = roots(path) - set(sys.stdlib_module_names) - {"raydiag"}
    # It comes with NVIDIA's tools, and its plugin does without.
    assert foreign <= {"pynvml"}


def test_what_travels_finds_all_that_it_imports() -> None:
    there = {part(path) for path in travels() if path.is_relative_to(PACKAGE)}
    for path in travels():
        assert parts_imported(ast.walk(parsed(path))) <= there, path


@pytest.mark.parametrize("path", sorted(ENTRYPOINTS.glob("*.py")), ids=lambda path: path.name)
def test_an_entrypoint_is_short_and_has_no_logic(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 20
    logic = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.Try)
    assert [node for node in ast.walk(parsed(path)) if isinstance(node, logic)] == []


# ---- acts


def test_signals_go_to_processes_of_our_own_only() -> None:
    found = {
        (name(path), function)
        for path in sources()
        for function, _ in calls(path)
        if function.rpartition(".")[2] in _SIGNAL_NAMES
    }
    assert found == SIGNALS


def test_one_function_ends_a_foreign_process() -> None:
    """Others of the package hand it a process that was verified; none looks for one by a name."""
    path = PACKAGE / "hotfix" / "process.py"
    senders = {
        function.name
        for function in ast.walk(parsed(path))
        if isinstance(function, ast.FunctionDef)
        and {"os.kill", "signal.pidfd_send_signal"}
        & {ast.unparse(one.func) for one in ast.walk(function) if isinstance(one, ast.Call)}
    }
    assert senders == {"end"}
    callers = everywhere(lambda one: "process.end" in {called for called, _ in calls(one)})
    assert callers == {"hotfix/restart.py"}
    patterns = re.compile(r"\b(pkill|killall|pgrep|fuser)\b")
    ours = (PACKAGE / "hotfix").glob("*.py")
    assert [one.name for one in ours if patterns.search(one.read_text())] == []


def _writes(function: str, call: ast.Call) -> bool:
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if function in ("open", "io.open", "os.fdopen"):
        modes = [call.args[1:2], [k.value for k in call.keywords if k.arg == "mode"]]
        texts = [ast.unparse(one) for found in modes for one in found]
        return any(set("wax+") & set(text) for text in texts)
    if function == "os.open":
        return any(flag in ast.unparse(one) for one in arguments for flag in _WRITING_FLAGS)
    return function in _WRITING_CALLS or function.rpartition(".")[2] in _WRITING_NAMES


def test_files_are_written_for_the_user_only() -> None:
    assert everywhere(lambda path: any(_writes(f, c) for f, c in calls(path))) <= WRITES_FILES


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("open(path)", False),
        ("open(path, 'rb')", False),
        ("open(path, 'r+b')", True),
        ("open(path, mode='a')", True),
        ("os.open(path, os.O_RDONLY | os.O_NONBLOCK)", False),
        ("os.open(path, os.O_RDONLY | os.O_CREAT)", True),
        ("Path(path).write_text('')", True),
        ("text.replace('a', 'b')", False),
        ("os.replace('a', 'b')", True),
    ],
)
def test_a_writing_call_is_recognised(text: str, expected: bool) -> None:
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call)
    assert _writes(ast.unparse(call.func), call) is expected


def _starts_processes(path: Path) -> bool:
    called = (function for function, _ in calls(path))
    return "subprocess" in roots(path) or "anyio.open_process" in called


def test_processes_are_started_where_it_is_said() -> None:
    assert everywhere(_starts_processes) == STARTS_PROCESSES
    forks = {"os.fork", "os.forkpty", "os.system", "os.popen", "os.posix_spawn", "os.execv"}
    assert everywhere(lambda path: {f for f, _ in calls(path)} & forks) == FORKS


def test_output_is_written_where_things_are_shown() -> None:
    def prints(path: Path) -> bool:
        attributes = [n for n in ast.walk(parsed(path)) if isinstance(n, ast.Attribute)]
        streams = {ast.unparse(node) for node in attributes} & {"sys.stdout", "sys.stderr"}
        return bool(streams) or "print" in {f for f, _ in calls(path)}

    elsewhere = {one for one in everywhere(prints) if not one.startswith(PRINTS)}
    assert elsewhere == set()


# ---- names and words


def test_modules_are_named_after_what_they_are() -> None:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base"}
    assert {path.stem for path in sources()} & vague == set()
    assert {path.name for path in PACKAGE.rglob("*") if path.is_dir()} & vague == set()


def test_nothing_names_a_place_on_somebodys_machine() -> None:
    place = re.compile(r"(?<![\w.~$}])/(?:work|root)/")
    places = [
        PACKAGE,
        *(REPOSITORY / one for one in ("entrypoints", "tests", "deploy", "examples")),
    ]
    places += [REPOSITORY / one for one in ("benchmarks", ".ci")]
    files = [path for one in places for path in one.rglob("*") if path.is_file()]
    files += [path for path in REPOSITORY.iterdir() if path.suffix in (".md", ".toml")]
    wrong = {
        path.relative_to(REPOSITORY).as_posix()
        for path in files
        if "__pycache__" not in path.parts and place.search(path.read_text(errors="replace"))
    }
    assert wrong == set()


def words(path: Path) -> set[str]:
    """String constants that look like ids of failure classes."""
    constants = [node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant)]
    texts = [value for value in constants if isinstance(value, str)]
    return {text for text in texts if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", text)}


def test_what_judges_uses_the_catalogs_words_only() -> None:
    found = set().union(*map(words, [*JUDGES, *EXPLAINS]))
    known = set(catalog.failures()) | {event.event for event in catalog.kernel_table().events}
    known |= set(signatures.table().by_id)
    known.update(*(entry.variants for entry in catalog.failures().values()))
    known |= {"node-exit", "torchrun-first", "before-training"}  # kinds of exits, and a time
    assert found - known == set()


_CLASS_FIRST = {"rule_out", "Finding"}


def test_playbooks_find_classes_of_the_catalog_only() -> None:
    """Their other words are ids of rows, queries and masks."""
    said = {kind.failure_class for kind in ROWS.values() if kind.failure_class}
    for path in PLAYBOOKS:
        for function, call in calls(path):
            for keyword in call.keywords:
                if keyword.arg == "failure_class" and isinstance(keyword.value, ast.Constant):
                    said.add(str(keyword.value.value))
            if function.rpartition(".")[2] not in _CLASS_FIRST or not call.args:
                continue
            if isinstance(call.args[0], ast.Constant):
                said.add(str(call.args[0].value))
    assert len(said) > 20
    assert said <= set(catalog.failures())


def test_every_class_is_named_by_what_can_yield_it() -> None:
    tables = set((PACKAGE / "catalog").glob("*.yaml")) - {PACKAGE / "catalog/failures.yaml"}
    tables.add(PACKAGE / "playbooks/playbooks.yaml")
    texts = [path.read_text() for path in [*PACKAGE.rglob("*.py"), *tables]]
    named = set(re.findall(r"[a-z0-9]+(?:-[a-z0-9]+)*", "\n".join(texts)))
    assert set(catalog.failures()) - named == set()


def test_what_measures_uses_none_of_them() -> None:
    found = set().union(*(words(path) for path in (PACKAGE / "probes").glob("*.py")))
    assert found & set(catalog.failures()) == set()


def test_the_document_shows_every_module() -> None:
    document = module_table.DOCUMENT.read_text(encoding="utf-8")
    expected = module_table.document_with_section(document)
    assert document == expected, "run: python tools/module_table.py --write"


def test_every_module_says_what_it_is() -> None:
    assert [name(path) for path in sources() if not module_table.first_line(path)] == []
