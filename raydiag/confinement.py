"""What a guarded child may do, enforced by the kernel and not by good intentions.

`files` readers get no-new-privileges, Landlock (every write right, device ioctl, signals and
abstract sockets, as far as the kernel's Landlock goes) and seccomp. `processes` readers get
no-new-privileges and seccomp only, because Landlock blinds them: under it another process's wchan
reads `0`, its stack gives EPERM, its fd and io EACCES, also for root. `sockets` readers are the
same, but may open TCP connections. `commands` readers start programs that neither would let work
(nvidia-smi opens its devices for writing, py-spy reads other processes' memory), so they have
no-new-privileges alone. `plugins` readers run the exporter's third-party programs, which may write
files of their own as well, but get a bounded memory.

Everything that the filter refuses fails with EPERM; reading files and writing to descriptors that
were handed over before stay allowed. Works through ctypes alone, on x86-64 and aarch64.

Source: seccomp(2), landlock(7), prctl(2); syscall numbers from asm/unistd_64.h and
asm-generic/unistd.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import struct
from typing import Any, Optional

# name:x86-64:aarch64, "-" where the architecture has no such call
_REFUSED = """
# create, change or remove files
creat:85:- unlink:87:- unlinkat:263:35 rename:82:- renameat:264:38 renameat2:316:276 mkdir:83:-
mkdirat:258:34 rmdir:84:- link:86:- linkat:265:37 symlink:88:- symlinkat:266:36 mknod:133:-
mknodat:259:33 truncate:76:45 ftruncate:77:46 fallocate:285:47 chmod:90:- fchmod:91:52
fchmodat:268:53 fchmodat2:452:452 chown:92:- fchown:93:55 lchown:94:- fchownat:260:54
utime:132:- utimes:235:- utimensat:280:88 futimesat:261:- setxattr:188:5 lsetxattr:189:6
fsetxattr:190:7 setxattrat:463:463 removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16
removexattrat:466:466 file_setattr:469:469 openat2:437:437 open_by_handle_at:304:265 flock:73:32
sync:162:81 syncfs:306:267
# reach other processes
kill:62:129 tkill:200:130 tgkill:234:131 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240
pidfd_send_signal:424:424 pidfd_open:434:434 pidfd_getfd:438:438 ptrace:101:117
process_vm_readv:310:270 process_vm_writev:311:271 process_madvise:440:440
process_mrelease:448:448 kcmp:312:272 setpriority:141:140 ioprio_set:251:30
sched_setaffinity:203:122 sched_setscheduler:144:119 sched_setparam:142:118
sched_setattr:314:274 migrate_pages:256:238 move_pages:279:239
# start processes
fork:57:- vfork:58:- clone:56:220 clone3:435:435 execve:59:221 execveat:322:281
# mounts and namespaces
mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51 setns:308:268 unshare:272:97
open_tree:428:428 move_mount:429:429 fsopen:430:430 fsconfig:431:431 fsmount:432:432
fspick:433:433 mount_setattr:442:442 open_tree_attr:467:467
# talk to anybody
socket:41:198 connect:42:203 bind:49:200 listen:50:201 accept:43:202 accept4:288:242
sendto:44:206 sendmsg:46:211 sendmmsg:307:269 shmget:29:194 shmat:30:196 shmctl:31:195
msgget:68:186 msgsnd:69:189 msgctl:71:187 semget:64:190 semop:65:193 semtimedop:220:192
semctl:66:191 mq_open:240:180 mq_unlink:241:181
# act on devices and the kernel
ioctl:16:29 io_uring_setup:425:425 io_uring_enter:426:426 io_uring_register:427:427 bpf:321:280
perf_event_open:298:241 userfaultfd:323:282 fanotify_init:300:262 init_module:175:105
finit_module:313:273 delete_module:176:106 kexec_load:246:104 kexec_file_load:320:294
reboot:169:142 swapon:167:224 swapoff:168:225 acct:163:89 quotactl:179:60 quotactl_fd:443:443
sethostname:170:161 setdomainname:171:162 settimeofday:164:170 clock_settime:227:112
adjtimex:159:171 clock_adjtime:305:266 iopl:172:- ioperm:173:- add_key:248:217
request_key:249:218 keyctl:250:219 vhangup:153:58
"""

# What `sockets` readers are not refused, or with the right arguments only.
_TCP_CALLS = ("socket", "connect", "sendto", "ioctl")
_IOCTL, _FIONBIO = (16, 29), 0x5421  # FIONBIO is how Python gives a socket a timeout
_STREAM_SOCKETS = (2, 10)  # AF_INET, AF_INET6
_SOCKET, _SOCK_TYPE_MASK, _SOCK_STREAM = (41, 198), 0xF, 1

# Calls that are refused only with certain arguments: (x86-64, aarch64) numbers.
_OPEN, _OPENAT, _FCNTL, _SYSLOG, _PRLIMIT = (2, -1), (257, 56), (72, 25), (103, 116), (302, 261)
_O_TMPFILE = 0o20000000
_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | _O_TMPFILE
_FCNTL_REFUSED = (6, 7, 8, 10, 13, 14, 15, 37, 38, 1024, 1026)  # locks, owners, leases, notify
_SYSLOG_ALLOWED = (3, 10)  # SYSLOG_ACTION_READ_ALL, _SIZE_BUFFER: they read and nothing else

_AUDIT_ARCH = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_X32_BIT = 0x40000000

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_SECCOMP = 1, 15, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_SECCOMP_MODE_FILTER = 2
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446  # the same on every architecture

_ADDRESS_SPACE_BYTES = 1 << 30  # far above what a reader needs, far below what hurts a node
_PROGRAMS = ("commands", "plugins")

_libc = ctypes.CDLL(None, use_errno=True)


def set_name(name: str) -> None:
    """Set the name (`comm`, at most 15 bytes) under which this process shows in /proc."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def die_with_parent() -> None:
    """Ask the kernel to end this process when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def adopt_orphans(yes: bool) -> None:
    """Whether descendants that lose their parent become children of this process."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def keep_only(*descriptors: int) -> None:
    """Close all others: an inherited pipe would outlive the run in a child that is stuck."""
    null = os.open("/dev/null", os.O_RDONLY)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in descriptors:
            with contextlib.suppress(OSError):  # that of this listing is closed already
                os.close(fd)


def confine(kind: str) -> dict[str, Any]:
    """Confine the calling process, for good, as a reader of this kind: see above.

    Returns what really holds: {"no_new_privs": bool, "seccomp": bool, "landlock_abi": int}, where
    landlock_abi 0 means that the kernel has none, or that it was not asked for.
    """
    limits = {resource.RLIMIT_CORE: 0}  # a core dump would be a write
    if kind == "plugins":
        limits[resource.RLIMIT_DATA] = _ADDRESS_SPACE_BYTES  # what is really taken of it
    else:
        limits[resource.RLIMIT_FSIZE] = 0
    if kind not in _PROGRAMS:
        limits[resource.RLIMIT_AS] = _ADDRESS_SPACE_BYTES
    for limit, value in limits.items():
        _, hard_limit = resource.getrlimit(limit)
        if hard_limit != resource.RLIM_INFINITY:
            value = min(value, hard_limit)
        resource.setrlimit(limit, (value, value))
    no_new_privs = _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    abi = _restrict_with_landlock() if kind == "files" and no_new_privs else 0
    filtered = no_new_privs and kind not in _PROGRAMS
    return {
        "no_new_privs": no_new_privs,
        "seccomp": filtered and _install_seccomp(tcp=kind == "sockets"),
        "landlock_abi": abi,
    }


def _restrict_with_landlock() -> int:
    """Forbid every write right that this kernel's Landlock knows; return its ABI version."""
    abi = int(_libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1))
    if abi < 1:
        return 0
    rights = (1 << 13) - 1  # ABI 1: bits 0 to 12
    rights &= ~(1 << 2 | 1 << 3)  # reading files and directories stays free
    for since, bit in ((2, 13), (3, 14), (5, 15)):  # refer, truncate, device ioctl
        if abi >= since:
            rights |= 1 << bit
    attributes = struct.pack("=Q", rights)
    if abi >= 4:
        attributes += struct.pack("=Q", 0b11)  # TCP bind and connect
    if abi >= 6:
        attributes += struct.pack("=Q", 0b11)  # abstract sockets and signals of others
    size = ctypes.c_size_t(len(attributes))
    ruleset = int(_libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, size, 0))
    if ruleset < 0:
        return 0
    restricted = _libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)
    return abi if restricted == 0 else 0


class _Filter:
    """A classic BPF program over struct seccomp_data, assembled instruction by instruction."""

    LOAD, JUMP_EQUAL, JUMP_SET, JUMP_GREATER_OR_EQUAL, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
    AND = 0x54
    ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | EPERM
    NUMBER, ARCHITECTURE = 0, 4  # offsets in struct seccomp_data

    def __init__(self, argument: Optional[int] = None) -> None:
        """`argument`: the one of the call that is loaded first."""
        self.code: list[bytes] = []
        if argument is not None:
            self.load_argument(argument)

    def add(self, op: int, value: int, if_true: int = 0, if_false: int = 0) -> None:
        """One instruction; jumps count instructions from the next one."""
        self.code.append(struct.pack("=HBBI", op, if_true, if_false, value))

    def refuse_if(self, jump: int, value: int) -> None:
        """Refuse the call where the loaded value satisfies the jump."""
        self.add(jump, value, 0, 1)
        self.add(self.RETURN, self.REFUSE)

    def load_argument(self, index: int) -> None:
        """Load an argument of the call."""
        self.add(self.LOAD, 16 + 8 * index)  # the low half: flags and commands are 32 bits

    def refuse_unless(self, value: int) -> None:
        """Refuse the call where the loaded value is another one."""
        self.add(self.JUMP_EQUAL, value, 1, 0)
        self.add(self.RETURN, self.REFUSE)

    def section(self, number: int, body: _Filter) -> None:
        """Run `body` for this syscall only; what it does not refuse is allowed."""
        body.add(self.RETURN, self.ALLOW)
        self.add(self.JUMP_EQUAL, number, 0, len(body.code))
        self.code += body.code


def _program(audit_arch: int, column: int, tcp: bool) -> _Filter:
    program = _Filter()
    program.add(program.LOAD, program.ARCHITECTURE)
    program.refuse_unless(audit_arch)
    program.add(program.LOAD, program.NUMBER)
    if column == 0:
        program.refuse_if(program.JUMP_GREATER_OR_EQUAL, _X32_BIT)
    for item in _REFUSED.split():
        parts = item.split(":")
        if tcp and parts[0] in _TCP_CALLS:
            continue
        if len(parts) == 3 and parts[1 + column] != "-":
            program.refuse_if(program.JUMP_EQUAL, int(parts[1 + column]))
    for call, argument in ((_OPEN, 1), (_OPENAT, 2)):
        flags = _Filter(argument)
        flags.refuse_if(flags.JUMP_SET, _WRITE_FLAGS)
        if call[column] >= 0:
            program.section(call[column], flags)
    fcntl = _Filter(1)
    for command in _FCNTL_REFUSED:
        fcntl.refuse_if(fcntl.JUMP_EQUAL, command)
    program.section(_FCNTL[column], fcntl)
    syslog = _Filter(0)
    for action in _SYSLOG_ALLOWED:
        syslog.add(syslog.JUMP_EQUAL, action, 0, 1)
        syslog.add(syslog.RETURN, syslog.ALLOW)
    syslog.add(syslog.RETURN, syslog.REFUSE)
    program.section(_SYSLOG[column], syslog)
    prlimit = _Filter(0)
    prlimit.refuse_unless(0)  # pid 0: ourselves
    program.section(_PRLIMIT[column], prlimit)
    if tcp:
        program.section(_SOCKET[column], _tcp_sockets())
        ioctl = _Filter(1)
        ioctl.refuse_unless(_FIONBIO)
        program.section(_IOCTL[column], ioctl)
    program.add(program.RETURN, program.ALLOW)
    return program


def _tcp_sockets() -> _Filter:
    """socket(): stream sockets of the internet families only, no UDP, no Unix sockets."""
    body = _Filter(0)
    ipv4, ipv6 = _STREAM_SOCKETS
    body.add(body.JUMP_EQUAL, ipv4, 2, 0)
    body.refuse_unless(ipv6)
    body.load_argument(1)
    body.add(body.AND, _SOCK_TYPE_MASK)
    body.refuse_unless(_SOCK_STREAM)
    return body


def _install_seccomp(tcp: bool) -> bool:
    """Install the filter; False where the kernel has no seccomp or the architecture is unknown."""
    architecture = _AUDIT_ARCH.get(os.uname().machine)
    if architecture is None:
        return False
    program = _program(*architecture, tcp)
    code = ctypes.create_string_buffer(b"".join(program.code))
    length = len(program.code)
    header = struct.pack("@HxxxxxxP", length, ctypes.addressof(code))  # struct sock_fprog
    return int(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)) == 0
