"""The stability gate on the published records: ``python -m studies.fecom.gate``.

Calls that the authors measured once their own gate had opened should pass; those of experiments that they
threw away because the machine was not quiet should not.
"""

from __future__ import annotations

from studies.fecom.dataset import read
from studies.fecom.recorded import Judged, idle_w, judged
from studies.page import markdown

QUIET = ("method-level", "data-size")
NOISY = ("failed/no-stable-check", "failed/no_gpu", "failed/unstable_server")
"""What failed for want of calm. ``eager_execution`` failed for another reason, on a quiet machine."""


def confusion(found: list[Judged]) -> dict[tuple[str, str], int]:
    """Label and verdict to the number of records. A gate that has too few samples stays shut."""
    count: dict[tuple[str, str], int] = {}
    for label, groups in (("quiet", QUIET), ("noisy", NOISY)):
        alike = [one for one in found if one.group in groups]
        count[label, "open"] = sum(one.stable for one in alike)
        count[label, "shut"] = sum(one.unstable for one in alike)
        count[label, "shut, too few samples"] = sum(one.too_few for one in alike)
    return count


def main() -> None:
    """Print the verdicts by group, and the confusion matrix."""
    dataset = read()
    found, idle = judged(dataset), idle_w(dataset)
    print("idle levels:", ", ".join(f"{name} {watts:.1f} W" for name, watts in idle.items()), "\n")
    header = ["records", "gate open", "gate shut", "shut: too few samples"]
    print(
        markdown(header, [[one.group, *map(str, (one.stable, one.unstable, one.too_few))] for one in found])
    )
    print()
    matrix = confusion(found)
    verdicts = header[1:]
    keys = ("open", "shut", "shut, too few samples")
    rows = [[label, *(str(matrix[label, key]) for key in keys)] for label in ("quiet", "noisy")]
    print(markdown(["label", *verdicts], rows))


if __name__ == "__main__":
    main()
