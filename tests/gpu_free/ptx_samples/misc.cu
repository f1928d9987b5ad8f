// Kernels for test_ptx_runner.py: lanes together, faults, hangs, clocks, launches, neighbours in a word.
#include <cuda_runtime.h>

#include <cstdint>

using u32 = unsigned;
using u64 = unsigned long long;

extern "C" __global__ void lanes_together(const u32* in, u32* out) {
    const u32 lane = threadIdx.x, value = in[lane];
    out += 16 * lane;
    out[0] = __shfl_sync(~0u, value, 5);
    out[1] = __shfl_xor_sync(~0u, value, 3);
    out[2] = __shfl_up_sync(~0u, value, 4);
    out[3] = __shfl_down_sync(~0u, value, 7, 16);
    out[4] = __ballot_sync(~0u, value & 1);
    out[5] = __any_sync(~0u, value == in[9]) | __all_sync(~0u, value == in[9]) << 1;
    out[6] = __match_any_sync(~0u, value & 3);
    int all;
    out[7] = __match_all_sync(~0u, value & 0, &all) + all;
    out[8] = __reduce_add_sync(~0u, value & 0xffff);
    out[9] = __reduce_max_sync(~0u, static_cast<int>(value));
    out[10] = __reduce_min_sync(~0u, value);
    if (lane % 2 == 0) {
        out[11] = __shfl_sync(0x55555555u, value, 6);
        out[12] = __popc(__activemask());
    } else {
        out[11] = __shfl_sync(0xaaaaaaaau, value, 7);
        out[12] = 0;
    }
    u32 elected;
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
    out[13] = __popc(__ballot_sync(~0u, elected));
}

extern "C" __global__ void not_in_own_mask(u32* out) {
    asm volatile("bar.warp.sync 0xfffffffe;");
    out[threadIdx.x] = 1;
}

extern "C" __global__ void waits_for_ever(const u32* flag) {
    u32 seen;
    do asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
    while (seen == 0);
}

extern "C" __global__ void waits_until(const u32* flag, u64 limit_ns, u32* out) {
    u64 begin, now;
    u32 seen;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        __nanosleep(20);
    } while (seen == 0 && now - begin < limit_ns);
    out[threadIdx.x] = seen == 0;
}

extern "C" __global__ void half_a_barrier(u32* out) {
    if (threadIdx.x < 32) asm volatile("bar.sync 1, 64;");
    if (threadIdx.x >= 32) asm volatile("bar.sync 2, 64;");
    out[threadIdx.x] = 1;
}

// Block 0 waits for block 1: works only where both are there at a time.
extern "C" __global__ void needs_block(u32* flag, u32 waiting) {
    if (threadIdx.x != 0) return;
    u32 seen = 0;
    if (blockIdx.x == waiting) do
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
        while (seen == 0);
    else
        asm volatile("st.release.gpu.global.u32 [%0], %1;" : : "l"(flag), "r"(1) : "memory");
}

extern "C" __global__ void store_at(u32* to, int index) {
    to[index] = 1;
}
extern "C" __global__ void load_wide(const void* from, u32* to) {
    const uint4 row = *static_cast<const uint4*>(from);
    to[0] = row.x + row.y + row.z + row.w;
}
extern "C" __global__ void reads_unwritten(u32* out) {
    volatile __shared__ u32 cell[64];
    if (threadIdx.x == 40) cell[0] = 1;
    out[threadIdx.x] = cell[threadIdx.x];
}
extern "C" __global__ void traps(u32* out) {
    if (threadIdx.x == 3) __trap();
    out[threadIdx.x] = 1;
}

extern "C" __global__ void bytes_of_a_word(uint8_t* out) {
    out[threadIdx.x + 64 * blockIdx.x] = threadIdx.x;
}
extern "C" __global__ void same_byte(uint8_t* out) {
    out[threadIdx.x / 2] = threadIdx.x;
}
extern "C" __global__ void halves_of_a_word(uint16_t* out) {
    out[threadIdx.x] = threadIdx.x;
}

extern "C" __global__ void increment(u32* cells) {
    cells[threadIdx.x] += 1 + threadIdx.x;
}

extern "C" __global__ void tickets(u32* counter, u32* out) {
    u32 mine;
    asm volatile("atom.add.relaxed.gpu.global.u32 %0, [%1], 1;" : "=r"(mine) : "l"(counter) : "memory");
    out[mine] = mine;
}
extern "C" __global__ void plain_tickets(u32* counter, u32* out) {
    const u32 mine = (*counter)++;
    out[mine] = mine;
}

extern "C" __global__ void reads_only(const u32* __restrict__ in, u32* out, int write_first) {
    u32* writable = const_cast<u32*>(in);
    if (write_first) writable[threadIdx.x] = 5;
    u32 value;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(value) : "l"(in + threadIdx.x) : "memory");
    out[threadIdx.x] = value;
}

__device__ u32 module_word = 40;
__constant__ u32 module_table[4] = {1, 2, 3, 4};
extern __shared__ u32 dynamic_memory[];
struct Arguments {
    u32* out;
    u32 values[6];
};
extern "C" __global__ void spaces(const __grid_constant__ Arguments args, int at) {
    __shared__ u32 fixed[32];
    fixed[threadIdx.x] = 1000;
    dynamic_memory[threadIdx.x] = 10000;
    const Arguments* pointer = &args;
    asm volatile("" : "+l"(pointer));
    u32* generic = at == 7 ? dynamic_memory : fixed;
    asm volatile("" : "+l"(generic));
    args.out[threadIdx.x] = module_word + module_table[threadIdx.x & 3] + pointer->values[at] +
                            generic[threadIdx.x] + dynamic_memory[threadIdx.x];
    if (__isShared(generic)) args.out[threadIdx.x] += 100000;
}

extern "C" __global__ void places(u32* out) {
    const u32 thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const u32 block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    out[block * blockDim.x * blockDim.y * blockDim.z + thread] = block * 1000 + thread;
}

extern "C" __global__ void switches(const u32* in, u32* out) {
    u32 value = in[threadIdx.x];
    for (u32 i = 0; i < (threadIdx.x & 7); ++i) {
        switch (value % 9) {
            case 0:
                value = value * 3 + 1;
                break;
            case 1:
                value ^= 0x55;
                break;
            case 2:
                value += in[(value >> 8) & 31];
                break;
            case 3:
                value = __brev(value);
                break;
            case 4:
                value = value / 7 + 3;
                break;
            case 5:
                value -= 12345;
                break;
            case 6:
                value = __popc(value) * 1021;
                break;
            default:
                value = ~value;
                break;
        }
    }
    out[threadIdx.x] = value;
}

// Inline assembly that repeats the names of registers and labels.
__device__ u32 countdown(u32 from) {
    u32 steps;
    asm volatile(
        "{\n.reg .pred done;\n.reg .u32 left;\nmov.u32 left, %1;\nmov.u32 %0, 0;\nagain:\n"
        "setp.eq.u32 done, left, 0;\n@done bra over;\nsub.u32 left, left, 1;\nadd.u32 %0, %0, 2;\nbra "
        "again;\n"
        "over:\n}"
        : "=r"(steps)
        : "r"(from));
    return steps;
}
extern "C" __global__ void scopes(u32* out) {
    out[threadIdx.x] = countdown(threadIdx.x) + countdown(3);
}
