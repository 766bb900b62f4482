"""An accounting so plain that it can be read off the definitions: one nanosecond at a time."""

from collections import defaultdict

from joulemap.devices import Device


class _Table:
    """The events as plain lists."""

    def __init__(self, events):
        self.name, self.phase, self.kind = list(events.name), list(events.phase), list(events.kind)
        self.device = [Device.parse(word) for word in events.device]
        self.start, self.end = events.start_ns.tolist(), events.end_ns.tolist()
        self.lane = None if events.lane is None else list(events.lane)


def tick_footprint(events, traces, weights=None):
    """{(name, phase, domain): J}, and {domain: idle J}, for small integer times."""
    table = _Table(events)
    energy, idle = defaultdict(float), defaultdict(float)
    for trace in traces:
        device = Device.parse(trace.domain.device)
        for interval, joules in enumerate(trace.energy_j.tolist()):
            begin, end = trace.edges_ns[interval : interval + 2].tolist()
            for now in range(begin, end):
                active = _active(table, device, now)
                total = sum(_weight(weights, row) for row in active)
                for row in active:
                    share = joules / (end - begin) * _weight(weights, row) / total
                    energy[table.name[row], table.phase[row], trace.domain.name] += share
                if not active:
                    idle[trace.domain.name] += joules / (end - begin)
    return dict(energy), dict(idle)


def _weight(weights, row):
    return 1.0 if weights is None else float(weights[row])


def _active(table, device, now):
    rows = range(len(table.name))
    on = [row for row in rows if table.start[row] <= now < table.end[row] and device.runs(table.device[row])]
    if table.lane is not None:
        top = {}
        for row in on:
            lane = row if table.kind[row] == "kernel" else "lane " + table.lane[row]
            place = (table.start[row], -table.end[row], row)
            if lane not in top or place > top[lane][0]:
                top[lane] = (place, row)
        on = [row for _, row in top.values()]
    busy = {(table.name[row], table.phase[row]) for row in on if table.kind[row] == "worker"}
    on = [row for row in on if table.kind[row] != "op" or (table.name[row], table.phase[row]) not in busy]
    return [row for row in on if table.kind[row] != "runtime"] or on
