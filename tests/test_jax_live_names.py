"""Names, phases and dataflow of JAX programs, traced here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joulemap.accounting.fusions import left_whole
from joulemap.frameworks.imported import ImportedTrace, named_share
from joulemap.frameworks.jax.profiles import read_profiles
from joulemap.traces import EventTrace
from tests.jax_live import attached, layers, traced
from tests.undisturbed import undisturbed

jax = pytest.importorskip("jax", reason="needs JAX")
nn = pytest.importorskip("flax.linen", reason="needs flax")
nnx = pytest.importorskip("flax.nnx", reason="needs flax")
optax = pytest.importorskip("optax", reason="needs optax")
jnp = jax.numpy
X = jax.random.normal(jax.random.key(0), (64, 32))
Y = jnp.zeros(64, jnp.int32)


class Block(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        wide = nn.relu(nn.Dense(128, name="up")(nn.LayerNorm(name="norm")(x)))
        return x + nn.Dense(32, name="down")(wide)


class Net(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for number in range(2):
            x = Block(name=f"layer_{number}")(x)
        return nn.Dense(10, name="head")(x)


def linen_step() -> Any:
    model, learning = Net(), optax.adamw(1e-3)
    weights = model.init(jax.random.key(1), X)
    state = learning.init(weights)

    @jax.jit
    def train_step(weights: Any, state: Any) -> Any:
        def loss(weights: Any) -> Any:
            scores = model.apply(weights, X)
            return optax.softmax_cross_entropy_with_integer_labels(scores, Y).mean()

        gradients = jax.grad(loss)(weights)
        updates, state = learning.update(gradients, state, weights)
        return optax.apply_updates(weights, updates), state

    return lambda: train_step(weights, state)


@pytest.fixture(scope="module")
def linen(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImportedTrace, Path]:
    folder = tmp_path_factory.mktemp("linen")
    step = linen_step()
    return traced(folder, lambda: [step() for _ in range(3)]), next(folder.rglob("*.pb"))


def test_layers_of_linen_have_both_passes(linen: tuple[ImportedTrace, Path]) -> None:
    found = layers(linen[0])
    for layer in ("Net/layer_0/up", "Net/layer_1/down", "Net/head"):
        assert {phase for _, phase in found[layer]} >= {"forward", "backward"}, layer
        assert ("dot_general", "backward") in found[layer]
    assert {phase for _, phase in found["optimizer/scale_by_adam"]} == {"optimizer"}
    assert any(layer.startswith("loss/softmax_cross_entropy") for layer in found)


def test_nearly_everything_has_a_name(linen: tuple[ImportedTrace, Path]) -> None:
    assert named_share(undisturbed(linen[0].events)) > 0.97


def test_splitting_fusions_loses_nothing(linen: tuple[ImportedTrace, Path]) -> None:
    split, whole = linen[0].events, left_whole(linen[0].events, linen[0].program.fusions)
    assert len(split) > len(whole)
    assert length_ns(split) == length_ns(whole)
    assert split.span_ns == whole.span_ns


def test_fusions_are_put_together_again_exactly(
    linen: tuple[ImportedTrace, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    again = left_whole(linen[0].events, linen[0].program.fusions)
    monkeypatch.setattr("joulemap.frameworks.jax.naming._split", lambda *_: ())
    never = read_profiles([linen[1]])
    assert never.program.fusions == ()
    assert sorted(rows(again)) == sorted(rows(never.events))


def rows(events: EventTrace) -> list[tuple[Any, ...]]:
    layer = [name.rpartition("/")[0] for name in events.name]
    words = (layer, events.phase, events.kind, events.lane or (), events.device)
    return list(zip(*words, events.start_ns.tolist(), events.end_ns.tolist(), strict=True))


def length_ns(events: EventTrace) -> int:
    return int((events.end_ns - events.start_ns).sum())


def test_parts_of_a_lane_do_not_overlap_unless_one_is_in_the_other(linen: tuple[ImportedTrace, Path]) -> None:
    events = linen[0].events
    work = events.take(events.kind.codes == events.kind.code("op"))
    for lane in set(work.lane):
        mine = work.take(np.array([one == lane for one in work.lane]))
        order = np.lexsort((-mine.end_ns, mine.start_ns))
        assert (mine.start_ns[order][1:] >= mine.end_ns[order][:-1]).all()


def test_dataflow_goes_from_layer_to_layer(linen: tuple[ImportedTrace, Path]) -> None:
    lifted = {
        ("/".join(source.split("/")[:2]), "/".join(target.split("/")[:2]))
        for source, target in linen[0].program.edges
    }
    assert ("Net/layer_0", "Net/layer_1") in lifted
    assert ("Net/layer_1", "Net/head") in lifted


class NnxBlock(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.up, self.down = nnx.Linear(32, 64, rngs=rngs), nnx.Linear(64, 32, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.down(nnx.relu(self.up(x)))


class NnxNet(nnx.Module):
    def __init__(self, rngs: Any) -> None:
        self.layers = nnx.List([NnxBlock(rngs), NnxBlock(rngs)])
        self.tail = nnx.Sequential(nnx.Linear(32, 16, rngs=rngs), nnx.relu, nnx.Linear(16, 10, rngs=rngs))

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return self.tail(x)


def test_modules_of_nnx_have_the_attributes_that_lead_to_them(tmp_path: Path) -> None:
    model = NnxNet(nnx.Rngs(0))
    learning = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def train_step(model: Any, learning: Any) -> Any:
        def loss(model: Any) -> Any:
            return (model(X) ** 2).mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        learning.update(model, gradients)
        return value

    found = layers(traced(tmp_path, lambda: train_step(model, learning)))
    for layer in ("NnxNet/layers/0/up", "NnxNet/layers/1/down", "NnxNet/tail/layers/0"):
        assert {phase for _, phase in found[layer]} >= {"forward", "backward"}, layer


class NnxLanguage(nnx.Module):
    """Layers that are computed again, a stack of layers that is scanned, and two that are mapped at once."""

    def __init__(self, rngs: Any) -> None:
        self.tokens = nnx.Embed(10, 32, rngs=rngs)
        self.layers = nnx.List([NnxBlock(rngs), NnxBlock(rngs)])
        self.stack = nnx.vmap(NnxBlock)(rngs.split(3))
        self.one, self.other = nnx.Linear(32, 32, rngs=rngs), nnx.Linear(32, 32, rngs=rngs)

    def read(self, tokens: Any) -> Any:
        x = self.tokens(tokens)
        for layer in self.layers:
            x = nnx.remat(NnxBlock.__call__)(layer, x)
        return nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(x, self.stack)

    def halved(x: Any) -> Any:  # noqa: N805 - it is called as a function, without a module
        return x / 2

    def answer(self, tokens: Any) -> Any:
        x = nnx.remat(lambda one, other, x: other(one(x)))(self.one, self.other, self.read(tokens))
        return self.tokens.attend(query=type(self).halved(x))


def test_methods_and_copies_of_nnx_modules_have_their_places_too(tmp_path: Path) -> None:
    model, tokens = NnxLanguage(nnx.Rngs(0)), jnp.arange(10)

    @nnx.jit
    def gradients(model: Any) -> Any:
        return nnx.grad(lambda model: (model.answer(tokens) ** 2).mean())(model)

    found = layers(traced(tmp_path, lambda: gradients(model)))
    for layer in ("layers/0", "layers/1", "stack"):
        for part in ("up", "down"):
            phases = {phase for _, phase in found[f"NnxLanguage/{layer}/{part}"]}
            assert phases >= {"forward", "backward"}, (layer, part)
    assert {operation for operation, _ in found["NnxLanguage/tokens"]} >= {"gather", "dot_general"}
    assert "NnxLanguage/Linear" in found  # which of the two is not known
    assert all(layer.startswith(("NnxLanguage", "gradients", "(")) for layer in found)


def test_scopes_of_nnx_change_no_instruction(tmp_path: Path) -> None:
    model = NnxNet(nnx.Rngs(0))
    graph, weights = nnx.split(model)

    def compiled() -> str:
        function = jax.jit(lambda weights: nnx.merge(graph, weights)(X))
        return str(function.lower(weights).as_text())

    plain, plain_value = compiled(), model(X)
    with attached(tmp_path):
        assert compiled() == plain
        np.testing.assert_array_equal(model(X), plain_value)
    assert compiled() == plain


def test_an_error_in_a_module_has_no_frame_of_ours(tmp_path: Path) -> None:
    import traceback

    class Fails(nnx.Module):
        def __init__(self) -> None:
            self.weight = nnx.Param(X)

        def __call__(self, x: Any) -> Any:
            raise ValueError("as it should")

        def copied(self) -> Any:
            return nnx.vmap(lambda one, other: (one, other), in_axes=(0, None))(self, self)

    for fails, said in ((jax.jit(lambda: Fails()(X)), "as it should"), (Fails().copied, "aliasing")):
        with attached(tmp_path), pytest.raises(ValueError, match=said) as caught:
            fails()
        assert "joulemap/frameworks/jax/nnx" not in "".join(traceback.format_exception(caught.value))


def test_plain_functions_name_what_is_in_no_scope(tmp_path: Path) -> None:
    weights = jnp.ones((32, 32))

    def attention(x: Any) -> Any:
        return jnp.tanh(x @ weights)

    def step(x: Any) -> Any:
        return attention(x).sum() + jnp.cumsum(x).sum()

    compiled = jax.jit(jax.grad(step))
    found = layers(traced(tmp_path, lambda: compiled(X)))
    assert {"forward", "backward"} <= {phase for _, phase in found["step/attention"]}


TURNS = 40


def test_copies_in_a_loop_are_the_loops(tmp_path: Path) -> None:
    @jax.jit
    def step(key: Any) -> Any:
        with jax.named_scope("noise"):
            return jax.lax.fori_loop(
                0, TURNS, lambda _, x: jnp.sort(x, axis=0) @ x, jax.random.normal(key, (16, 16))
            )

    counted = Counter(traced(tmp_path, lambda: step(jax.random.key(0))).events.name)
    assert counted["noise/copy"] >= TURNS
    assert counted["(unnamed)/copy"] < TURNS  # those before and after it


def test_loops_branches_and_recomputing(tmp_path: Path) -> None:
    weights = jnp.stack([jnp.eye(32)] * 4)

    def layer(x: Any, weight: Any) -> tuple[Any, None]:
        with jax.named_scope("layer"):
            return jnp.tanh(x @ weight), None

    def loss(weights: Any) -> Any:
        with jax.named_scope("encoder"):
            x, _ = jax.lax.scan(jax.checkpoint(layer), X, weights)
        with jax.named_scope("gate"):
            return jax.lax.cond(x.sum() > 0, lambda: (x @ weights[0]).sum(), lambda: x.sum())

    step = jax.jit(jax.grad(loss))
    found = layers(traced(tmp_path, lambda: step(weights)))
    assert {"forward", "backward", "recompute"} <= {phase for _, phase in found["encoder/layer"]}
    assert "gate" in found
    assert not any(part in layer.split("/") for layer in found for part in ("while", "body", "closed_call"))


def test_products_that_xla_computes_in_another_shape_keep_their_names(tmp_path: Path) -> None:
    vector = jnp.ones(32)

    @jax.jit
    def step(vector: Any) -> Any:
        with jax.named_scope("column"):
            return jax.grad(lambda vector: ((X @ vector) ** 2).sum())(vector)

    found = layers(traced(tmp_path, lambda: step(vector)))
    assert ("dot_general", "backward") in found["column"]
    assert ("dot", "other") not in found.get("(unnamed)", ())
