"""The update of a step shared out among ranks."""

import dataclasses

import pytest

from amp_transpiler import static
from amp_transpiler.runtime.distributed.shard_updates import restricted, share_updates
from amp_transpiler.update_passes import CUDA_WORTH
from tests.distributed import networks
from tests.distributed.test_cut_step import CPU, cut


@pytest.fixture(scope="module", params=[None, dataclasses.replace(CUDA_WORTH, merges=False)], ids=["alone", "grouped"])
def parts(request):
    net = networks.equal_layers("adamw", "O2").start(static.Executor(CPU))
    parameters = [name for name, info in net.main.persistables.items() if info.kind == "parameter"]
    return cut(net, 2, worth=request.param), parameters, net


def test_what_is_updated_together_has_one_owner(parts):
    cut_parts, parameters, net = parts
    shares = {share.name: share for share in share_updates(cut_parts, parameters, 2)}
    stacks = {stack.name: stack.members for stack in cut_parts[-1].assembled.stacks}
    owners = {member: share.owner for name, share in shares.items() for member in stacks.get(name, (name,))}
    large = {name for name in net.main.updates if net.scope[name].size > 1}
    assert set(owners) == large
    for name in parameters:
        assert shares[name].spread
        assert len({owner for other, owner in owners.items() if other.startswith(name)}) == 1
    assert {name for name, share in shares.items() if share.spread} == set(parameters)


def test_ranks_have_about_equally_much(parts):
    cut_parts, parameters, _ = parts
    loads = [0, 0, 0]
    for share in share_updates(cut_parts, parameters, 3):
        size = 1
        for dimension in share.shape:
            size *= dimension
        loads[share.owner] += size
    assert min(loads) > 0


def test_a_rank_computes_its_own_updates_and_the_check_of_all(parts):
    cut_parts, parameters, net = parts
    last = cut_parts[-1].assembled
    shares = share_updates(cut_parts, parameters, 2)
    nodes, updated = len(last.model.graph), set()
    for rank in range(2):
        others = {share.name for share in shares if share.owner != rank}
        part = restricted(last, others)
        assert not others & set(part.updates)
        assert not {share.name for share in shares if not share.spread} & others & set(part.state)
        assert len(part.model.graph) < nodes
        assert net.optimizer.get_loss_scaling().name in part.updates
        assert set(cut_parts[-1].takes) <= {value.name for value in part.model.graph.inputs}  # found_inf needs all
        updated |= set(part.updates)
    assert updated == set(last.updates)
    assert restricted(last, set(last.updates)) is None
