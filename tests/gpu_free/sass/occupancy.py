"""How many blocks of a kernel fit onto one multiprocessor."""

import subprocess
from pathlib import Path
from typing import NamedTuple

KIB = 1024


class Gpu(NamedTuple):
    """What of a GPU bounds the number of blocks."""

    name: str
    arch: str
    sms: int
    shared_kib: int  # of a multiprocessor
    capability: tuple[int, int]


GPUS = [
    Gpu("A100", "sm_80", 108, 164, (8, 0)),
    Gpu("H100, H200", "sm_90a", 132, 228, (9, 0)),
    Gpu("B200", "sm_100a", 148, 228, (10, 0)),
]
# Served by PTX; less shared memory.
SMALL = Gpu("L40S, RTX 4090", "sm_89", 142, 100, (8, 9))


class Block(NamedTuple):
    """What a block takes."""

    threads: int
    registers: int  # of a thread
    shared_bytes: int  # static and dynamic


def blocks(gpu: Gpu, block: Block) -> int:
    """How many fit: registers are given to warps by 256, 1 KiB of each block is the system's."""
    warps = block.threads // 32
    by_registers = 65536 // (-(-block.registers * 32 // 256) * 256) // warps
    if block.shared_bytes > (gpu.shared_kib - 1) * KIB:
        return 0
    by_shared = gpu.shared_kib * KIB // (-(-block.shared_bytes // 128) * 128 + KIB)
    return min(2048 // block.threads, by_registers, by_shared)


PROGRAM = """
#include <cuda_occupancy.h>
#include <cstdio>
#include <cstdlib>
int main(int, char** argv) {
    const auto n = [&](int i) { return std::atoi(argv[i]); };
    cudaOccDeviceProp gpu{};
    gpu.computeMajor = n(1), gpu.computeMinor = n(2);
    gpu.maxThreadsPerBlock = 1024, gpu.maxThreadsPerMultiprocessor = 2048, gpu.warpSize = 32;
    gpu.regsPerBlock = gpu.regsPerMultiprocessor = 65536, gpu.numSms = n(3);
    gpu.sharedMemPerBlock = 48 << 10, gpu.sharedMemPerMultiprocessor = n(4) << 10;
    gpu.sharedMemPerBlockOptin = (n(4) - 1) << 10, gpu.reservedSharedMemPerBlock = 1 << 10;
    cudaOccFuncAttributes kernel{};
    kernel.maxThreadsPerBlock = n(5), kernel.numRegs = n(6), kernel.sharedSizeBytes = n(7);
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = n(8);
    cudaOccDeviceState state{};
    cudaOccResult result{};
    if (cudaOccMaxActiveBlocksPerMultiprocessor(&result, &gpu, &kernel, &state, n(5), n(8)))
        return 1;
    std::printf("%d", result.activeBlocksPerMultiprocessor);
}
"""


def build_program(include: Path, folder: Path) -> Path:
    """The header's sum as a program."""
    source, program = folder / "occupancy.cpp", folder / "occupancy"
    source.write_text(PROGRAM, encoding="utf-8")
    command = ["g++", "-std=c++17", "-isystem", include, source, "-o", program]
    subprocess.run(command, check=True)
    return program


def blocks_by_header(program: Path, gpu: Gpu, block: Block, static_bytes: int) -> int:
    """What the header says."""
    numbers = [*gpu.capability, gpu.sms, gpu.shared_kib, block.threads, block.registers]
    numbers += [static_bytes, block.shared_bytes - static_bytes]
    return int(subprocess.check_output([program, *map(str, numbers)], text=True))
