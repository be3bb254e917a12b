"""How much of what the kernel's drivers can print the table of kernel events knows.

python -m tools.driver_coverage TREE...                     # the table, a line per driver
python -m tools.driver_coverage TREE... --unseen mlx5       # its errors without an event
python -m tools.driver_coverage TREE... --misses mlx5       # the same where a line has no level
python -m tools.driver_coverage TREE... --idle mlx5         # its errors that nobody would act on
python -m tools.driver_coverage TREE... --alarms mlx5       # what it tells as news, with an alarm
python -m tools.driver_coverage TREE... --generic mlx5      # its errors that are only the family's

TREE: sources of Linux, of a driver outside it (amdgpu's DKMS, NVIDIA's open modules) or of Lustre,
unpacked. Their print statements are found by the names of the functions, the conversions are
filled with plausible values, and what that driver puts in front comes in front. Errors are looked
up as records of /dev/kmsg, with their level, and as lines without one. An event is of a `kind` if
more is known of it than which driver printed it. Errors that nobody on call would act on (`idle`)
do not count: which they are goes by rule, `nobody_acts`. What is printed for debugging does not
count either: it is not in a log unless somebody asked for it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from raydiag import catalog
from raydiag.catalog.kernel_table import ERROR_LEVEL
from raydiag.model import Severity

ERROR, WARNING, INFO, DEBUG = "error", "warning", "info", "debug"
_LONGEST_CALL = 1500
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_COMMENT = re.compile(r'/\*.*?\*/|//[^\n]*|("(?:\\.|[^"\\\n])*")', re.DOTALL)
_FUNCTION = re.compile(r"^(?![ \t#}])[^\n;=]*?\b(\w+)\s*\([^;{}]*\)\s*\{", re.MULTILINE)
_FORMAT_MACRO = re.compile(r"#define[ \t]+(pr_fmt|dev_fmt)\(\w+\)[ \t]+((?:[^\n\\]|\\\n)+)")
_NAMED_TEXT = re.compile(r'#define[ \t]+(\w+)[ \t]+"([^"\n]*)"[ \t]*$', re.MULTILINE)
_FIRMWARE = {
    "FW_WARN": "[Firmware Warn]: ",
    "FW_BUG": "[Firmware Bug]: ",
    "FW_INFO": "[Firmware Info]: ",
    "HW_ERR": "[Hardware Error]: ",
}
_DM_PREFIX = re.compile(r'#define[ \t]+DM_MSG_PREFIX[ \t]+"([^"]*)"')
_TOKEN = re.compile(r'"((?:\\.|[^"\\])*)"|([A-Za-z_]\w*)|(\S)')
_CONVERSION = re.compile(
    r"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|z|t|L|j)?"
    r"(?:(p[A-Zdgbhtue]\w*|p)|([diouxXeEfgGcs%]))"
)
_RESULT = re.compile(r"\b(?:\w*(?:ret|err|rc|error|status|result)|r)\b|PTR_ERR")
_OF_POINTERS = {"pI": "10.1.2.3", "pM": "00:11:22:33:44:55", "pU": "1b4e28ba-2fa1-11d2-883f"}

# What names of functions say of the level; the first that fits.
_LEVELS = (
    (DEBUG, re.compile(r"dbg|debug|CDEBUG|trace|TP_printk|dprintk|dfprintk|_devel|vdbg", re.I)),
    (INFO, re.compile(r"info|notice|LCONSOLE$", re.I)),
    (WARNING, re.compile(r"warn", re.I)),
    (ERROR, re.compile(r"err(?!no)|crit|alert|emerg|fatal|abort|corruption|^CNETERR$", re.I)),
)
# What arguments say of it.
_LEVEL_ARGUMENT = (
    (ERROR, re.compile(r"\bD_(?:ERROR|EMERG|NETERROR)\b")),
    (WARNING, re.compile(r"\bD_WARNING\b")),
    (INFO, re.compile(r"\bD_CONSOLE\b")),
    (
        DEBUG,
        re.compile(r"KERN_DEBUG|LEVEL_INFO|LEVEL_SILENT|NV_DBG_(?:INFO|SETUP|USER)|\bFYI\b|NOISY"),
    ),
    (INFO, re.compile(r"KERN_(?:INFO|NOTICE)|LEVEL_NOTICE|_(?:NOTICE|INFO|SETUP|MMU)\b|\bSETUP\b")),
    (WARNING, re.compile(r"KERN_WARNING|LEVEL_WARNING|NV_DBG_WARNINGS|_WARN\b")),
    (
        ERROR,
        re.compile(
            r"KERN_(?:ERR|CRIT|ALERT|EMERG)|LEVEL_ERROR|LEVEL_FATAL|NV_DBG_ERRORS|\bVFS\b|_ERROR\b"
        ),
    ),
)
# Functions that print, whatever the level; others with such names compare or count.
_PRINTS = re.compile(
    r"(?:(?:dev|pr|netdev|netif|drm|pci|xfs|btrfs|ext4|ata_\w+|ibdev|mlx5\w*|mlx4|hw|ioc|md"
    r"|ctrl|net|nvme"
    r"|amd64|edac|dm|dd_dev|qib_dev|hwrm|esw|qos|fpga|fs|mc|acpi|gfs2|f2fs)_"
    r"(?:emerg|alert|crit|err|error|warn|warning|notice|info|dbg|msg)\w*"
    r"|DRM_(?:DEV_)?(?:ERROR|WARN|INFO|NOTE|DEBUG)\w*|DC_(?:LOG_)?(?:ERROR|WARNING)"
    r"|(?:\w+_)?printk(?:_ratelimited|_once|_deferred)?|ext4_(?:abort|error\w*|grp_locked_error)"
    r"|EXT4_ERROR_(?:INODE|FILE)\w*|cifs_(?:server_|tcon_)?dbg|DM(?:ERR|WARN|INFO|CRIT)\w*"
    r"|C(?:ERROR|WARN|EMERG|DEBUG\w*|NETERR)|L(?:DLM|QUOTA)_(?:ERROR|WARN)|LCONSOLE\w*"
    r"|NV_PRINTF(?:_COND)?|nv_printf|NV_DEV_PRINTF|NVSWITCH_PRINT|nvlink_print|UVM_(?:ERR"
    r"|INFO)_PRINT\w*"
    r"|NV_DRM_DEV_LOG_(?:ERR|WARN|INFO)|nvidia_(?:err|warn)|UVM_DBG_PRINT\w*"
    r"|pr_(?:err|warn|info|debug)_?(?:ratelimited_)?client)"
)
_NOT_PRINTED = re.compile(r"^TP_printk|^trace_|^seq_|snprintf|NL_SET|_test$")


@dataclass(frozen=True)
class Driver:
    """Where a driver's sources are, and what stands in front of its messages."""

    name: str
    sources: tuple[str, ...]  # parts of paths
    device: str  # what dev_err() puts in front
    classes: tuple[str, ...]  # the family's generic ones
    module: str = ""  # as the kernel names it; empty: as `device` begins
    common: str = ""  # what pr_err() puts there where the file does not say
    prefixes: tuple[
        tuple[str, str], ...
    ] = ()  # beginning of a function's name -> what it puts there
    skip: tuple[str, ...] = ()  # parts of paths: not on a server, or no driver

    @property
    def says_its_name(self) -> str:
        """A pattern for its name in a line without a prefix."""
        return "|".join(filter(None, (*self.name.split("/"), self.module, *_NAMES)))


_NAMES = ("iscsi", "megasas", "mpt", "gss", "rpc", "jbd2", "nvrm", "edac", "mce", "dm-")
_XFS = (("xfs_", "XFS (dm-5): "),)
_EXT4 = (
    ("ext4_msg", "EXT4-fs (sda1): "),
    ("ext4_warning", "EXT4-fs warning (device sda1): {function}:123: "),
    ("ext4_", "EXT4-fs error (device sda1): {function}:123: comm python3: "),
    ("EXT4_", "EXT4-fs error (device sda1): {function}:123: inode #12: comm python3: "),
)
_BTRFS = (
    *(
        (f"btrfs_{level}", f"BTRFS {word} (device sda1): ")
        for level, word in (
            ("err", "error"),
            ("crit", "critical"),
            ("warn", "warning"),
            ("info", "info"),
        )
    ),
)
_SCSI = (
    ("sd_printk", "sd 0:0:2:0: [sdh] "),
    ("scmd_printk", "sd 0:0:2:0: [sdh] tag#3 "),
    ("sdev_printk", "sd 0:0:2:0: "),
    ("shost_printk", "scsi host0: "),
    ("starget_printk", "scsi target0:0:2: "),
    ("ioc_", "mpt3sas_cm0: "),
    ("ata_port", "ata1: "),
    ("ata_link", "ata1: "),
    ("ata_dev", "ata1.00: "),
)
_MLX = (
    ("mlx5_core", "mlx5_core 0000:4f:00.0: {function}:123:(pid 4242): "),
    ("mlx5_ib", "infiniband mlx5_0: {function}:123:(pid 4242): "),
    ("mlx4_", "mlx4_core 0000:4f:00.0: "),
    ("esw_", "mlx5_core 0000:4f:00.0: E-Switch: "),
    ("ibdev_", "infiniband mlx5_0: "),
)
_DRM = (
    ("DRM_DEV_", "amdgpu 0000:c1:00.0: [drm:{function} [amdgpu]] *ERROR* "),
    ("DRM_WARN", "[drm] "),
    ("DRM_INFO", "[drm] "),
    ("DRM_NOTE", "[drm] "),
    ("DRM_DEBUG", "[drm:{function} [amdgpu]] "),
    ("DRM_", "[drm:{function} [amdgpu]] *ERROR* "),
    ("DC_", "[drm:{function} [amdgpu]] *ERROR* "),
    ("dm_error", "amdgpu 0000:c1:00.0: [drm] *ERROR* "),
    ("drm_err", "amdgpu 0000:c1:00.0: [drm] *ERROR* "),
    ("drm_", "amdgpu 0000:c1:00.0: [drm] "),
)
_LUSTRE = (
    ("LCONSOLE_ERR", "LustreError: "),
    ("LCONSOLE", "Lustre: "),
    ("CDEBUG", "Lustre: 4242:0:(file.c:123:{function}()) "),
    ("CWARN", "Lustre: 4242:0:(file.c:123:{function}()) "),
    ("LDLM_WARN", "Lustre: 4242:0:(file.c:123:{function}()) "),
    ("C", "LustreError: 4242:0:(file.c:123:{function}()) "),
    ("L", "LustreError: 4242:0:(file.c:123:{function}()) "),
)
_LNET = tuple((begin, text.replace("Lustre", "LNet")) for begin, text in _LUSTRE)
_CEPH = (("pr_err_", "ceph: [1b4e28ba 4242]: "), ("pr_warn_", "ceph: [1b4e28ba 4242]: "))
_CIFS = (
    ("cifs_dbg", "CIFS: VFS: "),
    ("cifs_server_dbg", "CIFS: VFS: \\\\nas01 "),
    ("cifs_tcon_dbg", "CIFS: VFS: \\\\nas01\\data "),
)
_NVIDIA = (
    ("NV_PRINTF", "NVRM: GPU0 {function}: "),
    ("NV_DEV_PRINTF", "NVRM: GPU 0000:1b:00.0: "),
    ("NVSWITCH", "nvidia-nvswitch3: "),
    ("nvlink", "nvidia-nvlink: "),
    ("UVM_", "nvidia-uvm: uvm_va_space.c:123 {function}[pid:4242] "),
    ("NV_DRM", "[drm] [nvidia-drm] [GPU ID 0x00001b00] "),
)
_EDAC = (
    ("edac_mc_printk", "EDAC MC0: "),
    ("edac_mc_chipset_printk", "EDAC chipset MC0: "),
    ("edac_printk", "EDAC MC: "),
    ("amd64_", "EDAC amd64: "),
    ("skx_", "EDAC skx MC0: "),
    ("i10nm_", "EDAC i10nm MC0: "),
)
_NIC_SKIP = ("/hfi1/", "/qib/", "/mthca/", "/usnic/", "/vmw_pvrdma/", "test")

DRIVERS = (
    Driver(
        "amdkfd", ("amd/amdkfd/",), "kfd kfd: amdgpu: ", ("kfd-error",), "amdgpu", "amdgpu: ", _DRM
    ),
    Driver(
        "amdgpu",
        ("amd/amdgpu/", "amd/pm/", "/ras/"),
        "amdgpu 0000:c1:00.0: amdgpu: ",
        ("amdgpu-other-error",),
        common="amdgpu: ",
        prefixes=_DRM,
        skip=(
            "/dce_v",
            "_v6_",
            "_v7_",
            "/legacy-dpm",
            "/powerplay",
            "drivers/ras/",
            "/ci",
            "/si",
            "amdgpu_atombios",
            "amdgpu_connectors",
            "amdgpu_display",
            "amdgpu_cs.c",
        ),
    ),
    Driver(
        "mlx5",
        ("mellanox/mlx5/core/", "infiniband/hw/mlx5/"),
        "mlx5_core 0000:4f:00.0: ",
        ("rdma-error",),
        "mlx5_core",
        "",
        _MLX,
        skip=("/hws/", "/steering/", "/fpga/", "/en_accel/", "/test"),
    ),
    Driver(
        "bnxt",
        ("broadcom/bnxt/", "infiniband/hw/bnxt_re/"),
        "bnxt_en 0000:1b:00.0: ",
        ("rdma-error",),
        "bnxt_en",
        "",
        (("ibdev_", "infiniband bnxt_re0: "),),
    ),
    Driver("ionic", ("pensando/ionic/", "hw/ionic/"), "ionic 0000:61:00.0: ", ("rdma-error",)),
    Driver(
        "ice/irdma",
        ("intel/ice/", "infiniband/hw/irdma/"),
        "ice 0000:75:00.0: ",
        ("rdma-error",),
        prefixes=(("ibdev_", "ice 0000:75:00.0 irdma0: "),),
    ),
    Driver(
        "nvme",
        ("nvme/host/",),
        "nvme nvme3: ",
        ("nvme-reset", "io-error"),
        skip=("/fc.c", "apple.c"),
    ),
    Driver(
        "scsi",
        (
            "drivers/scsi/scsi",
            "drivers/scsi/sd.c",
            "drivers/scsi/mpt3sas/",
            "drivers/scsi/megaraid/megaraid_sas",
            "drivers/scsi/smartpqi/",
        ),
        "megaraid_sas 0000:85:00.0: ",
        ("io-error",),
        prefixes=_SCSI,
        skip=("scsi_debug", "fcoe"),
    ),
    Driver(
        "ata",
        ("drivers/ata/libata", "drivers/ata/ahci.c", "drivers/ata/libahci.c"),
        "ahci 0000:00:17.0: ",
        ("io-error",),
        "libata",
        "",
        _SCSI,
    ),
    Driver(
        "md/dm",
        ("drivers/md/md", "drivers/md/raid", "drivers/md/dm"),
        "device-mapper: ",
        ("io-error",),
        "md",
        "",
        (("DM", "device-mapper: {dm}: "), ("dm_", "device-mapper: {dm}: ")),
        skip=("-vdo/", "dm-zoned"),
    ),
    Driver(
        "ext4", ("fs/ext4/", "fs/jbd2/"), "", ("fs-error",), "EXT4-fs", "", _EXT4, skip=("-test",)
    ),
    Driver("xfs", ("fs/xfs/",), "", ("fs-error",), "XFS", "", _XFS, skip=("/scrub/",)),
    Driver("btrfs", ("fs/btrfs/",), "", ("fs-error",), "BTRFS", "", _BTRFS, skip=("/tests/",)),
    Driver(
        "nfs",
        ("fs/nfs/", "fs/lockd/", "fs/nfs_common/", "net/sunrpc/"),
        "",
        ("fs-error", "nfs-timeout"),
        "NFS",
    ),
    Driver(
        "lustre",
        ("/lustre/",),
        "",
        ("fs-error",),
        "Lustre",
        "Lustre: ",
        _LUSTRE,
        skip=("/tests/", "/utils/", "/ldiskfs/", "osd-zfs", "/scripts/", "kunit"),
    ),
    Driver(
        "lnet",
        ("lnet/lnet/", "lnet/klnds/", "lnet/libcfs"),
        "",
        ("fs-error",),
        "LNet",
        "LNet: ",
        _LNET,
        skip=("/selftest/",),
    ),
    Driver(
        "ceph",
        ("fs/ceph/", "net/ceph/", "block/rbd.c"),
        "",
        ("fs-error", "io-error"),
        "ceph",
        "libceph: ",
        _CEPH,
    ),
    Driver("cifs", ("fs/smb/client/",), "", ("fs-error",), "CIFS", "CIFS: ", _CIFS),
    Driver(
        "iommu",
        ("iommu/amd/", "iommu/intel/", "iommu/arm/"),
        "arm-smmu-v3 arm-smmu-v3.0.auto: ",
        ("iommu-fault",),
        skip=("qcom", "tegra"),
    ),
    Driver(
        "pcie",
        ("pci/pcie/", "pci/hotplug/pciehp"),
        "pcieport 0000:d4:00.0: ",
        ("pcie-aer-nonfatal", "pcie-aer-fatal"),
        prefixes=(("ctrl_", "pcieport 0000:d4:00.0: pciehp: "),),
    ),
    Driver(
        "mce/edac",
        (
            "cpu/mce/",
            "acpi/apei/",
            "drivers/edac/edac",
            "drivers/edac/amd64",
            "drivers/edac/skx",
            "drivers/edac/i10nm",
            "drivers/edac/mce_amd",
        ),
        "EDAC MC0: ",
        ("mce", "edac-ue", "edac-ce"),
        common="mce: ",
        prefixes=_EDAC,
        skip=("inject",),
    ),
    Driver(
        "nvidia",
        ("kernel-open/nvidia/", "src/nvidia/", "nvidia-uvm/", "nvidia-peermem/", "nvidia-drm/"),
        "nvidia 0000:1b:00.0: ",
        ("nvidia-nvrm-other",),
        "nvidia",
        "",
        _NVIDIA,
        skip=("test", "/displayport/", "/dp/", "/vgpu/", "/generated/", "msgq"),
    ),
)


@dataclass(frozen=True)
class Printed:
    """A print statement, filled in."""

    file: str
    line: int
    level: str
    text: str
    prefix: str = ""  # what the driver puts in front

    @property
    def message(self) -> str:
        """The text without the prefix."""
        return self.text[len(self.prefix) :].strip()


# Errors that nobody on call would act on, by rule. What is left is to have an event.
_TELLS = (
    r"(?!.*(?:fail|error|time?d? ?out|corrupt|cannot|can't|unable|could ?n[o']t|not respon"
    r"|lost|dead|abort|fatal|"
    r"bad\b|\bnot\b|n't\b|wrong|missing|invalid|mismatch|stuck|hung|unexpected|offline"
    r"|inaccessible))"
)
_NOBODY_ACTS = {
    "the values of a report: a label and numbers": re.compile(
        rf"(?i)^{_TELLS}\W*(?:\[?[\w ./()<>#-]{{1,40}}\]?\s*[:=]+\s*)?"
        r"(?:[\w .()-]{0,30}[:=@#]?\s*\W*(?:0x)?(?:1f|3|-5|x|abc|sda1|[0-9a-f]{16})\b[\s,;.)%"
        r"|/\]]*)*\W*$"
    ),
    "not supported, or not allowed as it is set up": re.compile(
        r"(?i)\b(?:un|not? )(?:support|implement|allow|permit|recogni[sz])\w*|\brequires?\b"
        r"|\bmutually exclusive"
        r"|\b(?:doesn't|does not|don't|cannot|can't) (?:support|be (?:set|changed|used"
        r"|specified|mixed|combined))"
        r"|\bmount option|\bmodule param|\bplease (?:specify|provide|use)\b"
        r"|\bincompatible (?:option|mount)"
        r"|\bonly (?:supported|allowed|valid|one|when|for|if)\b|\balready (?:set|in use|exists"
        r"|registered|user)\b|\bparse"
    ),
    "interfaces for tests, debugging and set-up": re.compile(
        r"(?i)debugfs|sysfs|procfs|\bproc entry|/proc|ethtool|devlink|self.?test|inject"
        r"|\btracepoint|sysctl|kobject"
        r"|\bnetlink|genl|hwmon|\bled\b|cdev|chrdev|\bmisc device|unregister|\bmodule (?:init"
        r"|registr)"
        r"|\bregister (?:a )?(?:notifier|driver|misc|net|sysfs|cpu|char|block|aux|filesystem"
        r"|file system|shrinker)"
    ),
    "the body of a report of which another line tells the kind": re.compile(
        r"^\[Hardware Error\]: (?!.*_STATUS|Machine check events|CPU )"
    ),
    "memory that was not there: the kernel reports that itself": re.compile(
        r"(?i)\b(?:k|v|kv)?[mzc]?alloc\w*|\bout of memory|\bno (?:more )?memory|\benomem"
        r"|\bnot enough memory"
    ),
}
_OF_DEVICES = {
    "what a program or an administrator asked for is refused": re.compile(
        r"(?i)\b(?:invalid|bad|illegal|wrong|unknown|unrecogni[sz]ed|incorrect|conflicting"
        r"|missing|improper)\b.{0,30}"
        r"\b(?:arg\w*|param\w*|option|flag|mode|value|type|class|handle|size|length|index"
        r"|offset|attribute|request"
        r"|command|opcode|format|version|id|name|key|mask|range|count|number|setting|config\w*"
        r"|input|ioctl|port"
        r"|policy|level|state|target|string|device|algorithm|method|alignment|feature)s?\b"
        r"|\b(?:must|should|needs? to|has to|have to) (?:not |only )?(?:be|have|provide"
        r"|specify|use|match)\b"
        r"|\b(?:too (?:long|big|large|many|small|few|short))\b|\balready\b"
        r"|\bexceeds?\b.{0,25}\b(?:max|limit)"
    ),
    "software at odds with itself": re.compile(
        r"(?i)\bNULL\b|\bbug\b|\bassert\w*|\bsanity|\bshould (?:never|not)"
        r"|\bnot initiali[sz]ed|\brefcount"
        r"|\buninitiali[sz]ed|\bout of (?:bounds|range)|\bimpossible|\bunbalanced|\bleak"
    ),
    "display, video and old kinds of devices": re.compile(
        r"(?i)\b(?:crtc|connector|hdmi|displayport|dp ?aux|edp|backlight|vblank|dc_|dmub|dmcub"
        r"|otg|vcn|uvd|vce|jpeg|vpe"
        r"|isp|acp|lttpr|hdcp|framebuffer|fbdev|cursor|audio|codec|i2c|gpio|vbios|rom|atom)\w*\b"
        r"|\b(?:vcn|uvd|vce|jpeg|dcn|dce|hdcp|vpe)_"
    ),
    "virtual machines, flows and offloads of a network card": re.compile(
        r"(?i)\b(?:vf|vfs|pf|vport|representor|rep|sriov|sr-iov|vdpa|vfio|vgpu|mdev|eswitch"
        r"|e-switch|esw|bridge|lag|tc"
        r"|flower|flow|steering|fdb|macsec|ipsec|tls|ktls|ptp|pps|dpll|gnss|dcb|dscp|ets|pfc"
        r"|xdp|xsk|vlan|vxlan|geneve"
        r"|gre|fdir|rss|mcast|multicast|promisc\w*|filter\w*|acl|nvm|flash\w*|fru|ddp|profile"
        r"|sched\w* (?:node|tree"
        r"|layer)|tunnel|mac addr\w*|loopback|wol|eee|subfunction|sf|hairpin|crypto|dek|qos"
        r"|rate limit\w*|max rate)\b"
    ),
}
_FILE_SYSTEMS = ("md/dm", "ext4", "xfs", "btrfs", "nfs", "lustre", "lnet", "ceph", "cifs")


def nobody_acts(printed: Printed, driver: Driver) -> str:
    """The rule by which nobody would act on the error; empty if somebody would.

    What is odd in a file system is damage, so that fewer rules hold there.
    """
    if not printed.prefix and not re.search(driver.says_its_name, printed.text, re.I):
        return "it does not say which driver printed it"
    fits = {**_NOBODY_ACTS, **({} if driver.name in _FILE_SYSTEMS else _OF_DEVICES)}
    return next((rule for rule, words in fits.items() if words.search(printed.message)), "")


@dataclass
class Coverage:
    """What the table knows of one driver's print statements."""

    driver: Driver
    idle: list[Printed] = field(default_factory=list)  # errors that nobody would act on
    by_level: int = 0  # errors with an event where the record tells its level
    unseen: list[Printed] = field(default_factory=list)  # errors without an event
    missed: list[Printed] = field(default_factory=list)  # the same, and warnings, without a level
    generic: list[Printed] = field(default_factory=list)  # errors of which only the driver is known
    alarming: list[Printed] = field(default_factory=list)  # informative ones with an alarm
    telling: list[Printed] = field(default_factory=list)  # the same, but they do tell a failure
    counts: dict[str, int] = field(default_factory=dict)  # by level
    seen: dict[str, int] = field(default_factory=dict)  # those with an event

    def add(self, printed: Printed) -> None:
        """Look up one print statement."""
        level = printed.level
        if level == ERROR and nobody_acts(printed, self.driver):
            self.idle.append(printed)
            return
        hit = catalog.kernel_event(printed.text)
        self.counts[level] = self.counts.get(level, 0) + 1
        self.seen[level] = self.seen.get(level, 0) + (hit is not None)
        if level == ERROR:
            self._add_as_record(printed)
        if level == INFO:
            # What only words tell is a note where the line has no level.
            if hit and not hit[0].by_words and hit[0].severity is not Severity.INFO:
                failure = catalog.kernel_table().failure
                told = failure.search(printed.message.lower())
                (self.telling if told else self.alarming).append(printed)
        elif hit is None:
            self.missed.append(printed)

    def _add_as_record(self, printed: Printed) -> None:
        """Look up an error as /dev/kmsg has it, with its level."""
        hit = catalog.kernel_event(printed.text, ERROR_LEVEL)
        self.by_level += hit is not None
        if hit is None:
            self.unseen.append(printed)
        elif hit[0].unclassified:
            self.generic.append(printed)

    def row(self) -> str:
        """A line of the table."""
        errors, warnings = self.counts.get(ERROR, 0), self.counts.get(WARNING, 0)
        told = self.counts.get(INFO, 0)
        own, seen = self.by_level - len(self.generic), _share(self.by_level, errors)
        return (
            f"{self.driver.name:<10}{len(self.idle):>6}{errors:>7}{seen:>8}"
            f"{_share(own, errors):>8}{_share(self.seen.get(ERROR, 0), errors):>9}"
            f"{warnings:>9}{_share(self.seen.get(WARNING, 0), warnings):>8}"
            f"{told:>7}{_share(len(self.alarming), told):>8}"
        )


HEADING = "driver      idle errors   event    kind no level warnings   event   info   alarm"


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def measured(trees: Iterable[Path], names: Sequence[str] = ()) -> Iterator[Coverage]:
    """The coverage of each driver that the trees hold; only of those `names`, if any."""
    places = {
        path: f"/{path.relative_to(tree).as_posix()}"
        for tree in trees
        for path in sorted(tree.rglob("*.[ch]"))
    }
    for driver in DRIVERS:
        if names and driver.name not in names:
            continue
        coverage = Coverage(driver)
        texts: set[str] = set()
        for path, place in places.items():
            if not any(part in place for part in driver.sources):
                continue
            if any(part in place for part in driver.skip):
                continue
            for printed in statements(path.read_text("utf-8", "replace"), driver, path.name):
                if printed.text not in texts:
                    texts.add(printed.text)
                    coverage.add(printed)
        if texts:
            yield coverage


def statements(source: str, driver: Driver, file: str) -> Iterator[Printed]:
    """What a source file of the driver can print, filled in."""
    source = _COMMENT.sub(lambda match: match[1] or "\n" * match[0].count("\n"), source)
    named = {**_FIRMWARE, **dict(_NAMED_TEXT.findall(source))}
    formats = dict(_FORMAT_MACRO.findall(source))
    dm_prefix = _DM_PREFIX.search(source)
    functions = [(match.start(), match[1]) for match in _FUNCTION.finditer(source)]
    for call in _CALL.finditer(source):
        name = call[1]
        if not _PRINTS.fullmatch(name) or _NOT_PRINTED.search(name):
            continue
        arguments = _arguments(source, call.end())
        position = next((i for i, text in enumerate(arguments) if '"' in text), None)
        if position is None:
            continue
        if name.startswith("edac_printk") and position + 1 < len(arguments):
            position = max(i for i, text in enumerate(arguments[: position + 2]) if '"' in text)
        level = _level(name, " ".join(arguments[: position + 1]))
        if level is None or level == DEBUG:
            continue
        function = "start"
        for start, candidate in functions:
            if start > call.start():
                break
            function = candidate
        text = _filled(_literal(arguments[position], named), arguments[position + 1 :], function)
        prefix = _prefix(name, driver, formats, named, function)
        prefix = prefix.replace("{dm}", dm_prefix[1] if dm_prefix else "core")
        prefix = prefix.replace("{function}", function)
        text = f"{prefix}{text}".strip()
        if len(text) > len(prefix) + 3 and re.search(r"[a-zA-Z]{3}", text[len(prefix) :]):
            line = source.count("\n", 0, call.start()) + 1
            yield Printed(file, line, level, text, prefix)


def _arguments(source: str, start: int) -> list[str]:
    """The arguments of a call, whose parenthesis opens just before `start`."""
    arguments: list[str] = []
    depth, begin, index = 1, start, start
    end = min(len(source), start + _LONGEST_CALL)
    while index < end:
        character = source[index]
        if character == '"':
            index += 1
            while index < end and source[index] != '"':
                index += 2 if source[index] == "\\" else 1
        elif character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth == 0:
                return [*arguments, source[begin:index].strip()]
        elif character == "," and depth == 1:
            arguments.append(source[begin:index].strip())
            begin = index + 1
        elif character == ";":
            break  # no call, or one with a macro that cannot be read
        index += 1
    return []


def _level(name: str, leading: str) -> str | None:
    for level, pattern in _LEVEL_ARGUMENT:
        if pattern.search(re.sub(r'"(?:\\.|[^"\\])*"', "", leading)):
            return level
    return next((level for level, pattern in _LEVELS if pattern.search(name)), None)


def _literal(argument: str, named: Mapping[str, str]) -> str:
    """Adjacent string literals as one, with something for the macros between them."""
    parts = []
    for text, macro, _ in _TOKEN.findall(argument):
        if macro == "DFID":
            parts.append("[0x200000401:0x1:0x0]")
        elif macro.startswith("PRI"):
            parts.append("x")
        elif macro in named:
            parts.append(named[macro])
        elif macro and not macro.startswith("KERN_"):
            parts.append("x" if parts else "")
        elif text:
            parts.append(text)
    text = "".join(parts).replace('\\"', '"')
    return re.split(r"\\n", text.removeprefix("\\n"))[0].replace("\\t", " ").replace("\\\\", "\\")


def _filled(text: str, values: Sequence[str], function: str) -> str:
    """The format with plausible values."""
    remaining = iter(values)

    def value(match: re.Match[str]) -> str:
        pointer, letter = match.groups()
        if letter == "%":
            return "%"
        given = next(remaining, "")
        if pointer:
            if pointer == "pV":
                return "abc"
            return _OF_POINTERS.get(pointer[:2], "00000000a1b2c3d4" if pointer == "p" else "sda1")
        if letter == "s":
            return function if "__func__" in given else "abc"
        if letter in "xX":
            return "1f"
        return "-5" if letter in "di" and _RESULT.search(given) else "3"

    return _CONVERSION.sub(value, text)


def _prefix(
    name: str,
    driver: Driver,
    formats: Mapping[str, str],
    named: Mapping[str, str],
    function: str,
) -> str:
    for begin, prefix in driver.prefixes:
        if name.startswith(begin):
            return prefix
    module = driver.module or driver.device.split(" ")[0].rstrip(":")
    if name.startswith(("pr_", "net_")):
        if "pr_fmt" not in formats:
            return driver.common
        return _of_macro(formats["pr_fmt"], {**named, "KBUILD_MODNAME": module}, function)
    if name.startswith(("dev_", "pci_", "hwrm_", "mlx", "ibdev_")):
        named = {**named, "KBUILD_MODNAME": module}
        return driver.device + _of_macro(formats.get("dev_fmt", ""), named, function)
    if name.startswith(("netdev_", "netif_")):
        return f"{driver.device.removesuffix(': ')} ens1f0np0: "
    if "printk" in name or name.startswith("nv_printf"):
        return ""
    return driver.device


def _of_macro(body: str, named: Mapping[str, str], function: str) -> str:
    """What `pr_fmt` puts in front."""
    format_text, _, values = body.partition(",")
    parts = [named.get(macro, text) for text, macro, _ in _TOKEN.findall(format_text)]
    if "pr_fmt" in format_text:
        parts.append(named["KBUILD_MODNAME"] + ": ")
    text = "".join(parts)
    for value in values.split(","):
        text = text.replace("%s", named.get(value.strip(), function), 1)
    return text


def main() -> None:
    """The table, or the print statements asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="+", type=Path, metavar="TREE")
    asked = parser.add_mutually_exclusive_group()
    for option in ("unseen", "misses", "alarms", "generic", "idle"):
        asked.add_argument(f"--{option}", metavar="DRIVER", choices=[d.name for d in DRIVERS])
    options = parser.parse_args()
    name = options.unseen or options.misses or options.alarms or options.generic or options.idle
    if not name:
        print(HEADING)
    for coverage in measured(options.trees, [name] if name else ()):
        if not name:
            print(coverage.row())
            continue
        lists = {
            options.unseen: coverage.unseen,
            options.misses: coverage.missed,
            options.alarms: coverage.alarming,
            options.generic: coverage.generic,
            options.idle: coverage.idle,
        }
        for printed in lists[name]:
            print(f"{printed.level:<8}{printed.file}:{printed.line}: {printed.text}")


if __name__ == "__main__":
    main()
