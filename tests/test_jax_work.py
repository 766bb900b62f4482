"""How the parts of a fusion are weighed against each other."""

from joulemap.frameworks.jax.work import work, works
from joulemap.frameworks.xplane.hlo import Computation, Instruction


def test_a_scatter_works_on_its_updates_and_not_on_its_table():
    """The gradient of an embedding of two rows: 4,096 tokens are added to them, one by one."""
    table, rows, updates = (
        Instruction(number=number, opcode="parameter", dimensions=dimensions)
        for number, dimensions in enumerate(([2, 768], [4096, 1], [4096, 768]))
    )
    below = Instruction(number=3, opcode="compare", dimensions=[4096, 1], operands=[1, 1])
    added = Instruction(number=4, opcode="scatter", dimensions=[2, 768], operands=[0, 3, 2])
    inside = Computation(instructions=[table, rows, updates, below, added])
    assert [(one.opcode, amount) for one, amount in works(inside)] == [
        ("compare", 4096),
        ("scatter", 4096 * 768),
    ]


def test_a_slice_that_is_updated_costs_no_more_than_the_slice():
    cache, token = Instruction(dimensions=[8, 4096, 64]), Instruction(dimensions=[8, 1, 64])
    updated = Instruction(opcode="dynamic-update-slice", dimensions=cache.dimensions)
    assert work(updated, [cache, token]) == 8 * 64
    assert work(updated, []) == 8 * 4096 * 64
