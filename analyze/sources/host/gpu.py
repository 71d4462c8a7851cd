"""Output about GPUs: `nvidia-smi -q`, `nvidia-smi nvlink -e` and `-s`, DCGM's exporter and `dcgmi dmon`, Xid lines.

Of `nvidia-smi -q` the sections on ECC, retired pages, remapped rows, PCIe and the reasons of slow clocks are kept; a
counter is named by its headings (`ECC Errors/Volatile/DRAM Uncorrectable`). A GPU is named as the tool does it: `GPU 0`
by index, `GPU 00000000:10:1C.0` by its place on the bus. NVML does not tell past Xids; DCGM tells the last one, by GPU.
N/A and DCGM's blank values (9223372036854775792 and above) are samples that could not be read.

Source: nvidia-smi of drivers 470 to 580; dcgm-exporter 3 and 4 (`DCGM_FI_DEV_*`); DCGM `dcgm_fields.h` (230 XID,
409-449 NVLink counters).
"""

from __future__ import annotations

import re
from typing import Final

from roundk.analyze.sources.host.samples import GPU, NVLINK, UNREADABLE, Context, Samples
from roundk.analyze.sources.rows import decimal

_NVLINK_GPU: Final = re.compile(r"^\s*(GPU \d{1,4}): .{1,120}\(UUID: [^)]{1,80}\)")
_NVLINK: Final = re.compile(r"^\s*Link (\d{1,3}): (?:(.{1,60}): )?(\S.{0,60})$")
_QUERY: Final = re.compile(r"^(GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_KEY: Final = re.compile(r"^( {4,40})(\S.{0,60}?)\s*: (.{0,120})$")
_TITLE: Final = re.compile(r"^( {4,40})(\S[^:]{0,60})$")
_KEPT: Final = re.compile(
    r"(ECC Errors|Retired Pages|Remapped Rows|Clocks (?:Throttle|Event) Reasons|Fabric|GPU Recovery Action)(?:/|$)"
    r"|PCI/(?:Replays Since Reset|Replay Number Rollovers|GPU Link Info/)",
    re.IGNORECASE,
)
_METRIC: Final = re.compile(r"^(DCGM_FI_[A-Z0-9_]{3,80})\{([^}]{0,2000})\} (\S{1,40})")
_LABEL: Final = re.compile(r'(\w{1,40})="([^"]{0,200})"')
_ABOUT: Final = re.compile(r"XID|NVLINK|ECC|REMAP|RETIRED|PCIE_REPLAY|THERMAL_VIOLATION|POWER_VIOLATION|CORRECTABLE")
_PER_LINK: Final = re.compile(r"_L(\d{1,2})$")
_DMON_HEAD: Final = re.compile(r"^#\s?Entity\s+(\S.*)$")
_DMON: Final = re.compile(r"^(GPU \d{1,4}|GPU-I \d{1,4}|Switch \d{1,4})\s+(\S.*)$")
_XID: Final = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]{4,16})\): (\d{1,5})(.{0,300})")
_XID_FIELD: Final = "DCGM_FI_DEV_XID_ERRORS"


class Lines:
    """Reads these outputs line by line."""

    def __init__(self) -> None:
        self._section = ""
        self._gpu = ""
        self._titles: list[tuple[int, str]] = []
        self._columns: list[str] = []

    def take(self, samples: Samples, at: Context, text: str, line: int) -> bool:
        """Take a line; False: it is none of these."""
        if text.startswith("DCGM_FI_"):
            return self._metric(samples, at, text, line)
        if "NVRM: Xid" in text:
            return _xid_line(samples, at, text, line)
        if "GPU " in text[:8]:
            return self._gpu_line(samples, at, text, line)
        if text.startswith("#"):
            head = _DMON_HEAD.match(text)
            if head is not None:
                self._section, self._columns = "dmon", head[1].split()
            return head is not None
        if self._section == "nvlink":
            return self._link(samples, at, text)
        return self._section == "query" and text.startswith("    ") and self._query(samples, at, text)

    def _gpu_line(self, samples: Samples, at: Context, text: str, line: int) -> bool:
        query = _QUERY.match(text)
        if query is not None:
            self._section, self._gpu, self._titles = "query", query[1], []
            return True
        gpu = _NVLINK_GPU.match(text)
        if gpu is not None:
            self._section, self._gpu = "nvlink", gpu[1]
            return True
        row = _DMON.match(text) if self._section == "dmon" else None
        if row is not None:
            for counter, told in zip(self._columns, row[2].split(), strict=False):
                samples.add(at, GPU, row[1], counter, told)
                if counter.upper().startswith("XID"):
                    _xid(samples, at, row[1], told, line)
            return True
        return self._section == "query" and self._query(samples, at, text)

    def _link(self, samples: Samples, at: Context, text: str) -> bool:
        found = _NVLINK.match(text)
        if found is None:
            return False
        samples.add(at, NVLINK, self._gpu, found[2] or "speed", found[3], port=int(found[1]))
        return True

    def _query(self, samples: Samples, at: Context, text: str) -> bool:
        key = _KEY.match(text) or _TITLE.match(text)
        if key is None:
            return False
        depth = len(key[1])
        while self._titles and self._titles[-1][0] >= depth:
            self._titles.pop()
        name = "/".join([*(title for _, title in self._titles), key[2].strip()])
        if key.lastindex == 2:
            self._titles.append((depth, key[2].strip()))
        elif _KEPT.search(name):
            samples.add(at, GPU, self._gpu, name, key[3])
        return True

    def _metric(self, samples: Samples, at: Context, text: str, line: int) -> bool:
        found = _METRIC.match(text)
        if found is None:
            return False
        if not _ABOUT.search(found[1]):
            return True
        labels = dict(_LABEL.findall(found[2]))
        if labels.get("Hostname"):
            at = Context(at.source, at.time_ns, labels["Hostname"])
        device = f"GPU {labels.get('gpu', '?')}"
        link = _PER_LINK.search(found[1])
        told = found[3]
        if decimal(told) is None and re.fullmatch(r"\d{1,18}(?:\.0+)?(?:[eE]\+?\d{1,2})?", told):
            told = str(int(float(told)))
        kind = NVLINK if "NVLINK" in found[1] else GPU
        samples.add(at, kind, device, found[1], told, port=int(link[1]) if link else None)
        if found[1] == _XID_FIELD:
            _xid(samples, at, device, told, line)
        return True


def _xid(samples: Samples, at: Context, device: str, told: str, line: int) -> None:
    number = decimal(told)
    if told not in UNREADABLE and number is not None and 0 < number < 10_000:
        text = f"{device}: the last Xid is {number}"
        samples.fact(at, "xid", text, {"xid": number, "device": device}, line)


def _xid_line(samples: Samples, at: Context, text: str, line: int) -> bool:
    found = _XID.search(text)
    if found is None:
        return False
    fields = {"xid": int(found[2]), "bus_id": found[1]}
    samples.fact(at, "xid", f"Xid {found[2]} of the GPU at {found[1]}{found[3].rstrip()}", fields, line)
    return True
