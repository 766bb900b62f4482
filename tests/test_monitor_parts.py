"""Parts that the monitor delivers: through messages and back, and two made one for a slow reader."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc")
pytest.importorskip("joulemap.monitor.monitor_pb2", reason="make generates it")

from joulemap.monitor.coarse import coarse
from joulemap.monitor.quality import Quality
from joulemap.monitor.sampler import Batch
from joulemap.monitor.wire import Delivery, part_from, part_message
from joulemap.processes import ProcessShares

QUALITY = Quality(1, 0, 0, 0.0, 0.0, 0.0, 1.0)


def part(start_ns: int, end_ns: int, share: float, loading: float) -> Delivery:
    shares = ProcessShares.from_columns("package-0", [start_ns, end_ns], [share], [loading])
    return Delivery(Batch(end_ns, [], [], [], QUALITY), [shares])


def test_shares_arrive_as_they_were_sent() -> None:
    (arrived,) = part_from(part_message(part(10, 20, 0.5, 0.125)), {}).shares
    assert (arrived.domain, arrived.edges_ns.tolist()) == ("package-0", [10, 20])
    assert (arrived.share.tolist(), arrived.loading.tolist()) == ([0.5], [0.125])


def test_shares_of_two_parts_are_one_by_their_lengths() -> None:
    (both,) = coarse(part(0, 10, 1.0, 1.0), part(10, 40, 0.5, 0.2)).shares
    assert both.edges_ns.tolist() == [0, 40]
    assert both.share.tolist() == pytest.approx([0.625])
    assert both.loading.tolist() == pytest.approx([0.4])
