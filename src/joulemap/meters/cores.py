"""What a core and a gigabyte of memory are taken to draw, and why.

A processor's maker publishes its thermal design power (TDP): what it draws, about, with all its cores busy at
their base clock. The model spreads that evenly: **a busy core draws TDP / cores**, which includes its part of
caches, memory controllers and the rest of the chip. Each row of the table is a named part of a family, the
one with the most cores where there is a choice, so that everybody can look it up in the maker's data sheet.

It is rough, and the ways in which it is rough are known. One core alone runs at a higher clock and may draw
twice its even part; vector units at full tilt draw more than scalar code; parts of one family differ; a
hypervisor hides how busy the rest of the socket is. Hence ``ROUGHLY``: half of the figure, either way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

ROUGHLY = 0.5
"""How far the estimate may well be off in level, relative. It follows the load far better than that."""

IDLE_SHARE = 0.2
"""What an idle core draws, as a share of a busy one. An assumption: servers idle at some 15 to 30 % of their
full power, and cores that sleep leave the rest of the chip awake."""

DRAM_WATTS_PER_GB = 0.375
"""About 3 W for a module of 8 GB, busy or not: refresh and interface go on all the time. Others take 0.3725
(Green Algorithms) and 0.392 (Cloud Carbon Footprint). Large modules draw less a gigabyte."""


class Part(NamedTuple):
    """A processor: the pattern of the names it stands for, its TDP, its cores, and which one it is."""

    pattern: str
    tdp_w: float
    cores: int
    which: str

    @property
    def busy_core_w(self) -> float:
        return self.tdp_w / self.cores


PARTS = (
    Part(r"Xeon.* Platinum 8[45]\d\d", 350.0, 56, "Xeon Platinum 8480+"),
    Part(r"Xeon.* Platinum 83\d\d", 270.0, 40, "Xeon Platinum 8380"),
    Part(r"Xeon.* Platinum 8[12]\d\d", 205.0, 28, "Xeon Platinum 8280"),
    Part(r"Xeon.* Gold", 205.0, 32, "Xeon Gold 6338"),
    Part(r"Xeon.* Silver", 135.0, 16, "Xeon Silver 4314"),
    Part(r"Xeon.* E[357]-\d+ ?v?\d?", 135.0, 14, "Xeon E5-2690 v4"),
    Part(r"Xeon", 270.0, 40, "Xeon Platinum 8380, for a Xeon whose model is hidden"),
    Part(r"EPYC 9\d\d5", 500.0, 128, "EPYC 9755"),
    Part(r"EPYC 9\d\d4", 360.0, 96, "EPYC 9654"),
    Part(r"EPYC 7\d\d3", 280.0, 64, "EPYC 7763"),
    Part(r"EPYC", 225.0, 64, "EPYC 7742"),
    Part(r"Threadripper", 350.0, 64, "Ryzen Threadripper 7980X"),
    Part(r"Ryzen 9", 170.0, 16, "Ryzen 9 7950X"),
    Part(r"Ryzen 7", 105.0, 8, "Ryzen 7 7700X"),
    Part(r"Ryzen", 65.0, 6, "Ryzen 5 5600X"),
    Part(r"Core.* (i9|Ultra 9)", 125.0, 24, "Core i9-13900K"),
    Part(r"Core.* (i7|Ultra 7)", 125.0, 20, "Core i7-14700K"),
    Part(r"Core", 65.0, 6, "Core i5-12400"),
    Part(r"ARM 0xd4f", 250.0, 72, "NVIDIA Grace (Neoverse V2), its memory included"),
    Part(r"ARM 0xd40", 100.0, 64, "Graviton 3 (Neoverse V1); its maker publishes no TDP, so this is a guess"),
    Part(r"ARM 0xd0c", 250.0, 80, "Ampere Altra Q80-33 (Neoverse N1)"),
)
"""The first pattern that fits counts."""

DEFAULT = Part("", 150.0, 20, "a processor in the middle of this table")
"""For a processor that is not in it: 7.5 W a core, of a range from 1.6 to 13."""


@dataclass(frozen=True, slots=True)
class CoreModel:
    """What this machine, or the part of it that we may use, is taken to draw. A CPU is what the kernel
    counts: a hardware thread."""

    processor: str
    part: str
    """The processor of the table that stands for it; empty where somebody has set the watts."""
    cpus: float
    busy_w: float
    idle_w: float
    memory_gb: float

    def energy_j(self, seconds: float, busy_s: float) -> float:
        """Of all CPUs over a time, of which they were busy for ``busy_s`` in sum."""
        return self.cpus * self.idle_w * seconds + (self.busy_w - self.idle_w) * busy_s


def part_for(name: str) -> Part:
    """The processor of the table that stands for this one."""
    return next((part for part in PARTS if re.search(part.pattern, name)), DEFAULT)


def processor(cpuinfo: str) -> str:
    """The processor's name; ARM names only its part number."""
    if match := re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE):
        return " ".join(re.sub(r"\((R|TM|r|tm)\)", "", match[1]).split())
    match = re.search(r"^CPU part\s*:\s*(\S+)$", cpuinfo, re.MULTILINE)
    return f"ARM {match[1]}" if match else "unknown processor"


def threads_per_core(cpuinfo: str) -> int:
    """Hardware threads that share a core; one where the system does not say."""
    siblings = re.search(r"^siblings\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    cores = re.search(r"^cpu cores\s*:\s*(\d+)", cpuinfo, re.MULTILINE)
    return max(int(siblings[1]) // int(cores[1]), 1) if siblings and cores and int(cores[1]) else 1
