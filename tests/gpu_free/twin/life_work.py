"""What test_gpu_life.py runs of how long things live, and how buffers end."""

import gc
import weakref
from typing import Any

import torch
from cases import Case, Inputs, make_inputs
from exchange import round_trip, send, wait

from deep_ll import gpu_memory
from twin import world
from twin.cases import make_buffer, on_ranks
from twin.graph_work import error_of
from twin.layer import Calls


def destroyed(group: Any, case: Case) -> list[str]:
    """Hooks of a buffer that is gone: nothing is launched. Its host memory is given back."""
    fake = world.enter()
    group.barrier()
    before = fake.count("host_allocations")
    group.barrier()
    buf = make_buffer(group, case)
    round_trip(buf, case, 0)
    _, _, _, event, hook = send(buf, case, make_inputs(case, 1)[buf.rank])
    group.barrier()
    assert fake.count("host_allocations") == before + case.world
    memory = weakref.ref(buf._session._memory)
    buf.destroy()
    group.barrier()
    assert fake.count("host_allocations") == before
    launches = len(fake.launches())
    group.barrier()
    texts = [error_of(hook or event.current_stream_wait)]
    group.barrier()
    assert len(fake.launches()) == launches + (case.world if case.mode == "event" else 0)
    del buf, event, hook
    gc.collect()
    assert memory() is None
    return texts


def dropped(group: Any, case: Case) -> None:
    """Peers may still write into the heap of a buffer that was forgotten: it stays."""
    buf = make_buffer(group, case)
    round_trip(buf, case, 0)
    assert buf.get_comm_stream() == world.own_stream() + world.SIDE
    session, memory = weakref.ref(buf._session), buf._session._memory
    heap = weakref.ref(memory.heap.memory)
    assert memory in gpu_memory._open
    memory = weakref.ref(memory)
    del buf
    gc.collect()
    assert session() is None
    assert memory() in gpu_memory._open
    assert heap() is not None
    group.barrier()
    memory().close()
    gc.collect()
    assert memory() is None
    assert heap() is None


def raises_inside(group: Any, case: Case) -> str:
    """What a rank raises inside `with` comes out, instead of a wait for peers that do not end."""
    buf = make_buffer(group, case)

    def use() -> None:
        with buf:
            round_trip(buf, case, 0)
            raise KeyError("the reason")

    text = error_of(use)
    assert buf._session is not None
    buf.destroy()
    return text


def no_allocation(group: Any, case: Case) -> None:
    """After the first round a call allocates nothing and loads nothing."""
    with make_buffer(group, case) as buf:
        layer = Calls(buf, case)
        for _ in range(2):
            exchange_once(layer)
        group.barrier()
        fake, made = world.enter(), (torch.empty, torch.zeros)
        counts = (world.TwinDevice.num_allocations, fake.count("libraries"))
        group.barrier()
        torch.empty = torch.zeros = refuse
        try:
            for _ in range(3):
                exchange_once(layer)
        finally:
            torch.empty, torch.zeros = made
        group.barrier()
        assert counts == (world.TwinDevice.num_allocations, fake.count("libraries"))


def exchange_once(layer: Calls) -> None:
    wait(layer.case.mode, *layer.dispatch())
    wait(layer.case.mode, *layer.combine())


def refuse(*_args: object, **_options: object) -> None:
    raise AssertionError("memory was allocated in a call")


def lifetimes(group: Any, case: Case) -> None:
    """A hook keeps what its launch will use, and nothing else; until it was called."""
    with make_buffer(group, case) as buf:
        layer = Calls(buf, case)
        _, receive = layer.dispatch()
        mine, layer.mine = layer.mine, Inputs(*(t.clone() for t in layer.mine))
        x, stats = weakref.ref(mine.x), weakref.ref(layer.stats)
        del mine, layer.stats
        gc.collect()
        assert (x() is None, stats() is None) == (True, False)
        receive()
        gc.collect()
        assert stats() is None
        _, receive = layer.combine()
        refs = [weakref.ref(t) for t in (layer.outputs, layer.mine.topk_weights, layer.out)]
        del layer.outputs, layer.mine, layer.out
        gc.collect()
        assert [ref() is None for ref in refs] == [True, False, False]
        receive()
        gc.collect()
        assert all(ref() is None for ref in refs)


def run(name: str, case: Case, *args: Any) -> list[Any]:
    return on_ranks(case.world, globals()[name], case, *args)
