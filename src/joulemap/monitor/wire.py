"""The messages of ``monitor.proto``, made from our values and turned back into them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from joulemap.devices import Domain
from joulemap.monitor import monitor_pb2 as pb
from joulemap.monitor.facts import Fact
from joulemap.monitor.quality import Quality
from joulemap.monitor.sampler import Batch
from joulemap.monitor.track import Note
from joulemap.processes import ProcessShares
from joulemap.traces import PowerTrace


@dataclass(frozen=True, slots=True)
class Delivery:
    """A batch for one session, with the shares of its program."""

    batch: Batch
    shares: Sequence[ProcessShares]


def domain_message(domain: Domain) -> Any:
    """Fields that are not known stay unset."""
    known = {name: value for name, value in dataclasses.asdict(domain).items() if value is not None}
    return pb.Domain(**known)


def domain_from(message: Any) -> Domain:
    """A domain from its message."""
    return Domain(
        message.name,
        message.device,
        message.parent if message.HasField("parent") else None,
        message.sensor,
        message.provenance,
        message.update_period_s if message.HasField("update_period_s") else None,
    )


def part_message(delivery: Delivery) -> Any:
    """A part as a message."""
    batch = delivery.batch
    return pb.Part(
        t_ns=batch.t_ns,
        power=[_power_message(trace) for trace in batch.power],
        shares=[message for shares in delivery.shares for message in _share_messages(shares)],
        facts=[pb.Fact(**dataclasses.asdict(fact)) for fact in batch.facts],
        notes=[pb.Note(**dataclasses.asdict(note)) for note in batch.notes],
        quality=pb.Quality(**dataclasses.asdict(batch.quality)),
    )


def part_from(message: Any, domains: Mapping[str, Domain]) -> Delivery:
    """A part from its message; the domains were told when the session started."""
    power = [_power_from(part, domains[part.domain]) for part in message.power]
    facts = [Fact(fact.t_ns, fact.name, fact.value) for fact in message.facts]
    notes = [Note(note.t_ns, note.text) for note in message.notes]
    batch = Batch(message.t_ns, power, facts, notes, _quality_from(message.quality))
    return Delivery(batch, list(_shares_from(message.shares)))


def _power_message(trace: PowerTrace) -> Any:
    return pb.Power(
        domain=trace.domain.name,
        start_ns=int(trace.edges_ns[0]),
        length_ns=np.diff(trace.edges_ns).tolist(),
        energy_j=trace.energy_j.tolist(),
        gaps=np.flatnonzero(trace.gap).tolist(),
    )


def _power_from(message: Any, domain: Domain) -> PowerTrace:
    lengths = np.fromiter(message.length_ns, np.int64, len(message.length_ns))
    edges = message.start_ns + np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    gap = np.zeros(len(lengths), bool)
    gap[list(message.gaps)] = True
    return PowerTrace(domain, edges, list(message.energy_j), gap)


def _share_messages(shares: ProcessShares) -> Iterable[Any]:
    edges = shares.edges_ns.tolist()
    parts = zip(edges, edges[1:], shares.share.tolist(), shares.loading.tolist(), strict=False)
    for start_ns, end_ns, share, loading in parts:
        yield pb.Share(domain=shares.domain, start_ns=start_ns, end_ns=end_ns, share=share, loading=loading)


def _shares_from(messages: Iterable[Any]) -> Iterable[ProcessShares]:
    for message in messages:
        edges = [message.start_ns, message.end_ns]
        yield ProcessShares.from_columns(message.domain, edges, [message.share], [message.loading])


def _quality_from(message: Any) -> Quality:
    names = [column.name for column in dataclasses.fields(Quality)]
    return Quality(**{name: getattr(message, name) for name in names})
