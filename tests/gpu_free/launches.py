"""What test_launch.py runs in a process with the fake driver."""

import ctypes
import functools
import os
import threading
import timeit

import pytest
from fake_cuda import driver as fake_driver
from fake_cuda.device import FakeDevice
from fake_cuda.driver import Fake

from deep_ll.errors import ArgumentError, DeepLLError, DriverError
from deep_ll.runtime.cuda import calls, nvlink
from deep_ll.runtime.cuda import host_memory as pinned
from deep_ll.runtime.cuda.driver import Kernel, LaunchConfig, Module
from deep_ll.runtime.cuda.streams import is_capturing

CONFIG = LaunchConfig((4, 2, 1), (128, 1, 1), stream=0x51)
IMAGE = b"a fatbin"
PARAMS = bytearray(range(16))


@functools.cache
def fake() -> Fake:
    return Fake()


def kernel(name: str, num_bytes: int = 16, max_shared_bytes: int = 0, device: int = 0) -> Kernel:
    fake().set_params(name, num_bytes)
    fake().forget_launches()
    return Module.load(IMAGE, device).kernel(name, max_shared_bytes)


def check_a_launch_arrives_as_it_was_asked_for():
    kernel("plain").launch(CONFIG, PARAMS, 16)
    (launch,) = fake().launches()
    assert launch == ("plain", (4, 2, 1), (128, 1, 1), 0, 0x51, 0, (), bytes(range(16)), 0)


def check_parameters_may_change_after_each_launch():
    reused, params = kernel("reused", 4), bytearray(4)
    for value in range(3):
        params[0] = value
        reused.launch(CONFIG, params, 4)
    other = bytearray(b"\x09\x00\x00\x00")
    reused.launch(CONFIG, other, 4)
    assert [launch.params[0] for launch in fake().launches()] == [0, 1, 2, 9]


def check_parameters_may_be_an_address():
    exported = (ctypes.c_char * 16).from_buffer(PARAMS)
    kernel("address").launch(CONFIG, ctypes.addressof(exported), 16)
    assert fake().launches()[0].params == bytes(range(16))


def check_configurations_may_alternate():
    small, large = LaunchConfig((1, 1, 1), (32, 1, 1), 64, 7), LaunchConfig((9, 1, 1), (64, 1, 1))
    alternating = kernel("alternating")
    for config in (small, large, small):
        alternating.launch(config, PARAMS, 16)
    seen = [(each.grid[0], each.shared_bytes, each.stream) for each in fake().launches()]
    assert seen == [(1, 64, 7), (9, 0, 0), (1, 64, 7)]


def check_a_cooperative_launch_says_so():
    together = LaunchConfig((4, 1, 1), (32, 1, 1), cooperative=True)
    both = kernel("cooperative")
    both.launch(together, PARAMS, 16)
    both.launch(CONFIG, PARAMS, 16)
    assert [each.attributes for each in fake().launches()] == [(fake_driver.COOPERATIVE,), ()]


def check_a_module_and_its_kernels_are_loaded_once():
    first, libraries = kernel("once"), fake().count("libraries")
    assert kernel("once") is first
    assert (fake().count("libraries"), fake().count("loads", "once")) == (libraries, 1)
    kernel("once", device=1)
    assert fake().count("libraries") == libraries + 1


def check_shared_memory_is_asked_for_once_and_only_if_needed():
    kernel("few", max_shared_bytes=48 << 10)
    for num_bytes in (100_000, 100_000, 50_000):
        many = kernel("many", max_shared_bytes=num_bytes)
    many.launch(LaunchConfig((1, 1, 1), (32, 1, 1), 100_000), PARAMS, 16)
    assert fake().count("attribute_calls", "few") == 0
    assert (fake().count("attribute_calls", "many"), fake().shared_bytes("many")) == (1, 100_000)
    with pytest.raises(ArgumentError, match=r"many is launched with 100001 .* it may have 100000"):
        many.launch(LaunchConfig((1, 1, 1), (32, 1, 1), 100_001), PARAMS, 16)


def check_a_struct_of_another_build_is_refused():
    with pytest.raises(DeepLLError, match=r"takes 24 bytes .* struct of 16 bytes: .* reinstall"):
        kernel("longer", 24).launch(CONFIG, PARAMS, 16)
    fake().set_params("loose", 8, num_params=3)
    with pytest.raises(DeepLLError, match=r"loose takes more than one parameter"):
        Module.load(IMAGE, 0).kernel("loose")
    assert fake().launches() == []


def check_driver_errors_name_kernel_error_and_cure():
    refused = kernel("refused")
    fake().fail_next("cuLaunchKernelEx", 1)
    with pytest.raises(DriverError) as caught:
        refused.launch(CONFIG, PARAMS, 16)
    text = str(caught.value)
    assert caught.value.code == 1
    assert "launching refused with" in text
    assert "grid=(4, 2, 1)" in text
    assert "CUDA_ERROR_INVALID_VALUE (1), invalid argument" in text
    fake().fail_next("cuLaunchKernelEx", 700)
    with pytest.raises(DriverError, match=r"ILLEGAL_ADDRESS .* an earlier kernel .* failed"):
        refused.launch(CONFIG, PARAMS, 16)
    fake().fail_next("cuLibraryLoadData", 209)
    with pytest.raises(DriverError, match=r"GPU 0 .* no code for this GPU: build deep_ll"):
        Module.load(b"another fatbin", 0)
    fake().fail_next("cuLibraryGetKernel", 500)
    with pytest.raises(DriverError, match=r"looking for kernel missing .* reinstall"):
        kernel("missing")


def check_a_thread_without_a_context_launches_on_the_kernels_device():
    on_second, seen = kernel("elsewhere", device=1), []

    def work(value: int) -> None:
        on_second.launch(CONFIG, bytearray([value]) * 16, 16)
        seen.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    launches = fake().launches()
    assert sorted(seen) == sorted(each.params[0] for each in launches) == list(range(8))
    assert {each.device for each in launches} == {1}


def check_a_callback_runs_the_kernel():
    def run(name, params, num_bytes, grid, block, shared, stream) -> int:
        data = ctypes.string_at(params, num_bytes)
        seen.append((name, data, tuple(grid.contents), tuple(block.contents), shared, stream))
        return 0

    seen: list[tuple] = []
    native = fake_driver.LaunchCallback(run)
    fake().on_launch(ctypes.cast(native, ctypes.c_void_p).value)
    kernel("called").launch(CONFIG, PARAMS, 16)
    fake().on_launch(None)
    kernel("called").launch(CONFIG, PARAMS, 16)
    assert seen == [(b"called", bytes(range(16)), (4, 2, 1), (128, 1, 1), 0, 0x51)]


def check_threads_do_not_share_what_a_launch_is_told():
    """The second thread launches while the driver still reads what the first has told it."""

    def run(name, params, num_bytes, grid, block, shared, stream) -> int:
        if threading.current_thread() is not other:
            other.start()
            other.join()
            seen.append((grid.contents[0], ctypes.string_at(params, 1)))
        return 0

    shared, seen = kernel("shared"), []
    narrow = LaunchConfig((1, 1, 1), (32, 1, 1))
    other = threading.Thread(target=shared.launch, args=(narrow, bytearray(b"\x09" * 16), 16))
    fake().on_launch(run)
    shared.launch(CONFIG, PARAMS, 16)
    fake().on_launch(None)
    assert seen == [(4, b"\0")]
    assert [each.grid[0] for each in fake().launches()] == [4, 1]


def check_capture_is_seen():
    assert not is_capturing(0x51)
    fake().set_capturing(0x51, fake_driver.CAPTURING)
    assert is_capturing(0x51)
    assert not is_capturing(0x52)
    with pytest.raises(DriverError, match=r"stream 0x0 .* a stream of your own"):
        is_capturing(0)
    fake().set_capturing(0x51, fake_driver.INVALIDATED)
    with pytest.raises(DriverError, match=r"0x51 is broken"):
        is_capturing(0x51)
    fake().set_capturing(0, 0)


def check_host_memory_is_zero_and_lives_until_closed():
    before = fake().count("host_allocations")
    words = pinned.host_memory(4096, 0)
    assert words.tensor.count_nonzero() == 0
    ctypes.memset(words.device_address, 7, 8)
    assert int(words.tensor.sum()) == 56
    address = words.address
    del words
    assert fake().count("host_allocations") == before + 1
    again = pinned.host_memory(64, 0)
    again.close()
    again.close()
    assert fake().count("host_allocations") == before + 1
    assert address != 0
    fake().fail_next("cuMemHostAlloc", 2)
    with pytest.raises(DriverError, match=r"64 bytes of pinned memory .* CUDA_ERROR_OUT_OF_MEMORY"):
        pinned.host_memory(64, 0)


def check_a_link_by_what_the_driver_says():
    assert nvlink.place_of(FakeDevice(1)).pci == "0000:18:00.0"
    pair = "0000:17:00.0", "0000:18:00.0"
    links = []
    for native_atomics in ("1", "0"):
        os.environ["FAKE_CUDA_NVLINK"] = native_atomics
        links.append(nvlink._link_by_driver(*pair, "no NVML"))
    assert links == [(True, "NVLink"), (False, "PCIe by what the driver says (no NVML)")]
    unseen = nvlink._link_by_driver(pair[0], "0000:99:00.0", "no NVML")
    assert unseen == (False, "a link that cannot be told (no NVML): pip install nvidia-ml-py")


def check_occupancy_is_the_drivers():
    assert kernel("resident").resident_blocks(512) == 4


def check_what_a_launch_costs():
    timed, count = kernel("timed"), 20_000
    seconds = timeit.timeit(lambda: timed.launch(CONFIG, PARAMS, 16), number=count)
    with calls.current(calls.primary_context(0)):
        with_context = timeit.timeit(lambda: timed.launch(CONFIG, PARAMS, 16), number=count)
    return (
        f"a launch takes {with_context / count * 1e6:.2f} us of Python, "
        f"{seconds / count * 1e6:.2f} us where its context is not current"
    )
